package admission

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"unbounded/internal/config"
	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/paths"
	"unbounded/internal/record"
)

// given is a folder of credentials in which ours has this content.
func given(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, paths.Credential), []byte(content), 0o400); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestRead(t *testing.T) {
	for _, test := range []struct {
		name    string
		file    string // "": none
		folders []string
		want    string
		status  exit.Status
	}{
		{name: "the file", file: "f", want: "f"},
		{name: "the file wins", file: "f", folders: []string{given(t, "c")}, want: "f"},
		{name: "an empty file wins too: somebody has to look at it", file: " ", folders: []string{given(t, "c")}, want: " "},
		{name: "the credential, as it is", folders: []string{given(t, "c\n\n")}, want: "c\n\n"},
		{name: "the second folder", folders: []string{"", t.TempDir(), given(t, "c")}, want: "c"},
		{name: "the first one wins", folders: []string{given(t, "c"), given(t, "d")}, want: "c"},
		{name: "neither", folders: []string{"", t.TempDir(), "/absent"}, status: exit.Refused},
		{name: "an empty credential is none", folders: []string{given(t, "\n")}, status: exit.Refused},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			if test.file != "" {
				if err := durable.Replace(paths.At(root, paths.Config), []byte(test.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			data, from, err := Read(root, test.folders...)
			if exit.Of(err) != test.status || string(data) != test.want {
				t.Errorf("Read() = %q, %s, %v, want %q and status %d", data, from, err, test.want, test.status)
			}
			if err != nil && (!errors.Is(err, ErrNoConfig) || !strings.Contains(err.Error(), paths.Config) || !strings.Contains(err.Error(), paths.Credential)) {
				t.Errorf("Read() = %v, want the file and the credential named", err)
			}
		})
	}
}

// A credential is admitted as the file is: the same record, the same limit, and nothing of it in what is said.
func TestAdmitCredential(t *testing.T) {
	const token = "abcdef.0123456789abcdef"
	secret := strings.Replace(plain, `"Kubelet":{`, `"Kubelet":{"Auth":{"BootstrapToken":"`+token+`"},`, 1) + "\n\n"
	root := host(t, nil)
	if err := os.Remove(paths.At(root, paths.Config)); err != nil {
		t.Fatal(err)
	}
	var said []string
	request := Request{
		Root: root, Credentials: given(t, secret), Slots: fakeSlots{},
		Say: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) },
	}
	first, err := Admit(t.Context(), request)
	if err != nil || first.ConfigFingerprint != identityOf("m1").Fingerprint() {
		t.Fatalf("Admit() = %+v, %v", first, err)
	}
	if data, err := os.ReadFile(paths.At(root, paths.Admitted)); err != nil || string(data) != secret {
		t.Errorf("admitted = %q, %v, want the credential", data, err)
	}
	if text := strings.Join(said, "\n"); !strings.Contains(text, paths.Credential) || strings.Contains(text, token) {
		t.Errorf("said %q, want the credential's name and nothing of its content", text)
	}
	for _, broken := range []string{secret[:60], strings.Repeat(" ", config.MaxSize) + secret, strings.Replace(secret, "m1", "m2", 1)} {
		request.Credentials = given(t, broken)
		if _, err := Admit(t.Context(), request); exit.Of(err) != exit.Refused || strings.Contains(err.Error(), token) {
			t.Errorf("Admit() = %v, want a refusal without the token", err)
		}
	}
}

// A credential of the first boot is not there in later ones. A complete host goes on without it, an unfinished one cannot.
func TestCredentialIsGone(t *testing.T) {
	for _, test := range []struct {
		name   string
		phase  record.Phase
		change func(*record.Record)
		want   exit.Status
		says   string
	}{
		{name: "complete", phase: record.Complete},
		{name: "complete, of a public agent", phase: record.Complete, change: func(r *record.Record) { r.Inputs = record.Inputs{} }},
		{name: "a cloned disk", phase: record.Complete, change: func(r *record.Record) { r.MachineID = strings.Repeat("2", 32) }, want: exit.Refused, says: "cloned"},
		{name: "installing", phase: record.Installing, want: exit.Refused, says: paths.Config},
		{name: "resetting", phase: record.Resetting, want: exit.Refused, says: paths.Config},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := host(t, map[string]string{paths.Record: recordJSON(t, func(r *record.Record) {
				r.Phase = test.phase
				if test.change != nil {
					test.change(r)
				}
			})})
			if err := os.Remove(paths.At(root, paths.Config)); err != nil {
				t.Fatal(err)
			}
			r, err := Admit(t.Context(), Request{Root: root, Slots: fakeSlots{err: errors.New("not asked")}})
			if exit.Of(err) != test.want || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Fatalf("Admit() = %v, want status %d", err, test.want)
			}
			marked, markErr := there(root, paths.Complete)
			if markErr != nil || (len(marked) == 1) != (err == nil) {
				t.Errorf("marker = %v, %v", marked, markErr)
			}
			if err == nil && r.MachineName != "m1" {
				t.Errorf("record = %+v", r)
			}
			if left, err := there(root, paths.Admitted); err != nil || len(left) > 0 {
				t.Errorf("%v was written, %v", left, err)
			}
		})
	}
}
