package dockerd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"unbounded/internal/before"
)

func TestFindApply(t *testing.T) {
	for _, test := range []struct {
		name string
		data string // empty: no file
		kind before.Kind
		want string
	}{
		{"no file", "", before.File, "{\n  \"iptables\": false\n}\n"},
		{"other keys", `{"debug": true}`, before.Key, "{\n  \"iptables\": false,\"debug\": true}"},
		{"docker's default", `{"iptables": true}`, before.Key, `{"iptables": false}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, File)
			if test.data != "" {
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(test.data), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			change, err := Find(root)
			if err != nil || change.Kind != test.kind || !change.Needed() {
				t.Fatalf("Find = %+v, %v, want a needed change of kind %s", change, err, test.kind)
			}
			if test.kind == before.File {
				_, err = before.ApplyFile(root, change)
			} else {
				_, err = Apply(root)
			}
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil || string(data) != test.want {
				t.Errorf("the file is %q, %v, want %q", data, err, test.want)
			}
			if change, err := Find(root); err != nil || change.Needed() {
				t.Errorf("again: Find = %+v, %v, want nothing needed", change, err)
			}
		})
	}
}

func TestFindRefuses(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, File)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if change, err := Find(root); err == nil {
		t.Errorf("Find = %+v", change)
	}
}

func TestRestore(t *testing.T) {
	set := before.Entry{Kind: before.Key, Object: File + ":" + Key, Before: before.Gone(), Ours: []before.State{before.Text(Value)}}
	turned := set
	turned.Before = before.Text("true")
	for _, test := range []struct {
		name  string
		entry before.Entry
		text  string // "": no file
		now   before.State
		want  string
	}{
		{name: "set by us", entry: set, text: "{\n  \"iptables\": false,\"a\": 1}", now: before.Text("false"), want: "{\"a\": 1}"},
		{name: "turned by us", entry: turned, text: `{"iptables":false}`, now: before.Text("false"), want: `{"iptables":true}`},
		{name: "gone", entry: set, text: `{"a":1}`, now: before.Gone(), want: `{"a":1}`},
		{name: "no file", entry: set, now: before.Gone()},
		{name: "changed", entry: turned, text: `{"iptables":7}`, now: before.Text("7"), want: `{"iptables":true}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, File)
			if test.text != "" {
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(test.text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			now, err := Now(root)
			if err != nil || !now.Same(test.now) {
				t.Errorf("Now = %v, %v, want %v", now, err, test.now)
			}
			if test.text == "" {
				return
			}
			if _, err := Restore(root, test.entry); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != test.want {
				t.Errorf("restored: %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

// What docker cannot read is somebody else's work: neither ours nor as it was.
func TestNowBroken(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, File)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("{ broken"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if now, err := Now(root); err != nil || now.Absent || now.Same(before.Text(Value)) {
		t.Errorf("Now = %v, %v, want another value", now, err)
	}
}
