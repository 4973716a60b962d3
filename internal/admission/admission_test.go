package admission

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/legacy"
	"unbounded/internal/paths"
	"unbounded/internal/record"
)

const (
	machine  = "00000000000000000000000000000001"
	mounted  = "36 25 0:32 / /etc/machine-id ro - tmpfs tmpfs rw\n"
	elsewise = "36 25 0:32 / /run rw - tmpfs tmpfs rw\n"
)

// fakeSlots is a host's answer about both slots.
type fakeSlots struct {
	runs, registered bool
	err              error
}

func (f fakeSlots) SlotRuns(context.Context, string) (bool, error)   { return f.runs, nil }
func (f fakeSlots) Registered(context.Context, string) (bool, error) { return f.registered, f.err }

func configJSON(name, version, image, server string) string {
	return fmt.Sprintf(`{"MachineName":%q,"Cluster":{"Version":%q},"Kubelet":{"ApiServer":%q},"OCIImage":%q}`, name, version, server, image)
}

var plain = configJSON("m1", "v1.37.2", "r.test/node:1", "https://api.test:6443")

func identityOf(name string) record.Identity {
	return record.Identity{MachineName: name, KubernetesVersion: "v1.37.2", OCIImage: "r.test/node:1", APIServer: "https://api.test:6443"}
}

// host lays out a root with the files and returns it.
func host(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	base := map[string]string{
		paths.Config: plain, "/etc/machine-id": machine + "\n", "/proc/self/mountinfo": elsewise, "/etc/hostname": "h\n",
	}
	for path, content := range files {
		base[path] = content
	}
	for path, content := range base {
		if err := durable.Replace(paths.At(root, path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func recordJSON(t *testing.T, change func(*record.Record)) string {
	t.Helper()
	r := record.New(identityOf("m1"))
	r.Prefix, r.MachineID = paths.DefaultRoot, machine
	change(&r)
	data, err := r.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// snapshot is every path below root with its mode, time and content, but for locks in /run.
func snapshot(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || strings.HasPrefix(path, root+"/run") {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		all[path] = info.Mode().String()
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			all[path] += info.ModTime().String() + string(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestAdmissionTable(t *testing.T) {
	phase := func(p record.Phase) string { return recordJSON(t, func(r *record.Record) { r.Phase = p }) }
	installing := phase(record.Installing)
	for _, test := range []struct {
		name  string
		files map[string]string
		slots fakeSlots
		want  exit.Status
		says  []string
	}{
		{name: "no record, clean host", want: exit.OK},
		{name: "no record, machine runs", slots: fakeSlots{runs: true}, want: exit.Refused, says: []string{"running machine kube1", "reset"}},
		{name: "no record, machine registered", slots: fakeSlots{registered: true}, want: exit.Refused, says: []string{"running machine", "reset"}},
		{name: "no record, tree", files: map[string]string{paths.Tree("kube2") + "/x": ""}, want: exit.Refused, says: []string{paths.Tree("kube2"), "reset"}},
		{name: "no record, settings", files: map[string]string{paths.Nspawn("kube1"): ""}, want: exit.Refused, says: []string{paths.Nspawn("kube1"), "reset"}},
		{name: "no record, drop-in", files: map[string]string{paths.DropInFile("kube1"): ""}, want: exit.Refused, says: []string{paths.DropIn("kube1")}},
		{name: "no record, applied config", files: map[string]string{paths.Applied("kube2"): ""}, want: exit.Refused, says: []string{paths.Applied("kube2")}},
		{name: "no record, daemon unit", files: map[string]string{paths.SystemdDir + "/" + paths.DaemonUnit: ""}, want: exit.Refused, says: []string{paths.DaemonUnit}},
		{name: "no record, recovery unit", files: map[string]string{paths.SystemdDir + "/" + paths.RecoveryUnit: ""}, want: exit.Refused, says: []string{paths.RecoveryUnit}},
		{name: "no record, unit of the public agent's boot", files: map[string]string{paths.SystemdDir + "/" + legacy.BootstrapUnit: ""}, want: exit.Refused, says: []string{legacy.BootstrapUnit, "reset"}},
		{name: "no record, its recovery script", files: map[string]string{legacy.RecoveryScripts()[1]: ""}, want: exit.Refused, says: []string{legacy.RecoveryScripts()[1]}},
		{name: "no record, its flush", files: map[string]string{paths.SystemdDir + "/nftables-flush.service": "-f /etc/unbounded/kube/nftables-clear.nft"}, want: exit.Refused, says: []string{"nftables-flush.service"}},
		{name: "no record, an operator's flush", files: map[string]string{paths.SystemdDir + "/nftables-flush.service": "-f /etc/own.nft"}, want: exit.OK},
		{name: "no record, cannot be inspected", slots: fakeSlots{err: errors.New("machine kube1: machined is masked")}, want: exit.Failed, says: []string{"machined is masked", "kube1"}},
		{name: "record is rubbish", files: map[string]string{paths.Record: "{"}, want: exit.Refused, says: []string{paths.Record, "reset"}},
		{name: "record is empty", files: map[string]string{paths.Record: ""}, want: exit.Refused, says: []string{paths.Record, "reset"}},
		{name: "record is newer", files: map[string]string{paths.Record: strings.Replace(installing, `"schemaVersion": 1`, `"schemaVersion": 2`, 1)}, want: exit.Refused, says: []string{"schemaVersion is 2", "reset"}},
		{name: "resetting", files: map[string]string{paths.Record: phase(record.Resetting)}, want: exit.Refused, says: []string{"unbounded-reset.target"}},
		{name: "another machine name", files: map[string]string{paths.Record: installing, paths.Config: configJSON("m2", "1.37.2", "r.test/node:1", "https://api.test:6443")}, want: exit.Refused, says: []string{`"m1"`, `"m2"`, "reset"}},
		{name: "another version", files: map[string]string{paths.Record: installing, paths.Config: configJSON("m1", "v1.37.3", "r.test/node:1", "https://api.test:6443")}, want: exit.Refused, says: []string{"Cluster.Version", "1.37.2", "1.37.3", "reset"}},
		{name: "another image", files: map[string]string{paths.Record: installing, paths.Config: configJSON("m1", "v1.37.2", "r.test/node:2", "https://api.test:6443")}, want: exit.Refused, says: []string{"OCIImage", "node:1", "node:2"}},
		{name: "another server", files: map[string]string{paths.Record: phase(record.Complete), paths.Config: configJSON("m1", "v1.37.2", "r.test/node:1", "https://b.test")}, want: exit.Refused, says: []string{"Kubelet.ApiServer", "api.test", "b.test"}},
		{name: "a cloned disk", files: map[string]string{paths.Record: installing, "/etc/machine-id": strings.Repeat("2", 32)}, want: exit.Refused, says: []string{machine, strings.Repeat("2", 32), "reset"}},
		{name: "a cloned complete disk", files: map[string]string{paths.Record: phase(record.Complete), "/etc/machine-id": strings.Repeat("2", 32)}, want: exit.Refused, says: []string{machine, "reset"}},
		{name: "installing, same, whatever the host", files: map[string]string{paths.Record: installing, paths.Tree("kube1") + "/x": ""}, slots: fakeSlots{err: errors.New("not asked")}, want: exit.OK},
		{name: "complete, same, machined masked", files: map[string]string{paths.Record: phase(record.Complete)}, slots: fakeSlots{err: errors.New("not asked")}, want: exit.OK},
		{name: "scheme and v are the same", files: map[string]string{paths.Record: installing, paths.Config: configJSON("m1", "1.37.2", "r.test/node:1", "api.test:6443")}, want: exit.OK},
		{name: "configuration missing", files: map[string]string{paths.Record: installing, paths.Config: "-"}, want: exit.Refused, says: []string{paths.Config}},
		{name: "configuration is a folder", files: map[string]string{paths.Config: "/"}, want: exit.Refused, says: []string{paths.Config, "not a regular file", "remove it"}},
		{name: "record is a folder", files: map[string]string{paths.Record + "/x": ""}, want: exit.Refused, says: []string{paths.Record, "reset"}},
		{name: "configuration is rubbish", files: map[string]string{paths.Config: "{"}, want: exit.Refused},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := host(t, test.files)
			if special := test.files[paths.Config]; special == "-" || special == "/" {
				if err := os.Remove(paths.At(root, paths.Config)); err != nil {
					t.Fatal(err)
				}
				if special == "/" {
					if err := os.Mkdir(paths.At(root, paths.Config), 0o755); err != nil {
						t.Fatal(err)
					}
				}
			}
			before := snapshot(t, root)
			_, err := Admit(t.Context(), Request{Root: root, Prefix: paths.DefaultRoot, Slots: test.slots})
			if got := exit.Of(err); got != test.want {
				t.Fatalf("Admit() = %v (status %d), want status %d", err, got, test.want)
			}
			for _, says := range test.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("error %q does not name %q", err, says)
				}
			}
			if test.want == exit.OK {
				return
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has several lines", err)
			}
			if diff := cmp.Diff(before, snapshot(t, root)); diff != "" {
				t.Errorf("a refusal changed the host:\n%s", diff)
			}
		})
	}
}

func TestAdmitOwnsTheHost(t *testing.T) {
	root := host(t, nil)
	request := Request{Root: root, Prefix: "/srv/u", Slots: fakeSlots{}}
	first, err := Admit(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if first.Phase != record.Installing || first.Prefix != "/srv/u" || first.MachineID != machine || first.ConfigFingerprint != identityOf("m1").Fingerprint() {
		t.Errorf("record = %+v", first)
	}
	before := snapshot(t, root)
	second, err := Admit(t.Context(), request)
	if err != nil || second.InstallID != first.InstallID {
		t.Errorf("second Admit() = %+v, %v, want the same installID", second, err)
	}
	if diff := cmp.Diff(before, snapshot(t, root)); diff != "" {
		t.Errorf("the second Admit() wrote:\n%s", diff)
	}
	// A refreshed token is the same installation, and is what the stages then read.
	refreshed := strings.Replace(plain, `"Kubelet":{`, `"Kubelet":{"Auth":{"BootstrapToken":"abcdef.0123456789abcdef"},`, 1)
	if err := durable.Replace(paths.At(root, paths.Config), []byte(refreshed), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Admit(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	admitted := paths.At(root, paths.Admitted)
	if data, err := os.ReadFile(admitted); err != nil || string(data) != refreshed {
		t.Errorf("%s = %q, %v, want the refreshed configuration", admitted, data, err)
	}
	if info, err := os.Stat(admitted); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode of %s = %v, %v, want 0600", admitted, info.Mode(), err)
	}
}

func TestMachineIDIsRecordedOnceItIsPersistent(t *testing.T) {
	root := host(t, map[string]string{"/proc/self/mountinfo": mounted})
	request := Request{Root: root, Prefix: paths.DefaultRoot, Slots: fakeSlots{}}
	r, err := Admit(t.Context(), request)
	if err != nil || r.MachineID != "" {
		t.Fatalf("first boot: record = %+v, %v, want no machine-id", r, err)
	}
	// The interrupted first boot gets another id, which is then committed.
	if err := durable.Replace(paths.At(root, "/etc/machine-id"), []byte(strings.Repeat("3", 32)), 0o444); err != nil {
		t.Fatal(err)
	}
	if err := durable.Replace(paths.At(root, "/proc/self/mountinfo"), []byte(elsewise), 0o444); err != nil {
		t.Fatal(err)
	}
	r, err = Admit(t.Context(), request)
	if err != nil || r.MachineID != strings.Repeat("3", 32) {
		t.Fatalf("after the commit: record = %+v, %v, want its machine-id", r, err)
	}
}

func TestMarkerFollowsPhase(t *testing.T) {
	complete := recordJSON(t, func(r *record.Record) { r.Phase = record.Complete })
	installing := recordJSON(t, func(*record.Record) {})
	for _, test := range []struct {
		name   string
		record string
		marker bool
		want   bool
	}{
		{"complete without marker", complete, false, true},
		{"complete with marker", complete, true, true},
		{"installing with marker", installing, true, false},
		{"installing without marker", installing, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := map[string]string{paths.Record: test.record}
			if test.marker {
				files[paths.Complete] = ""
			}
			root := host(t, files)
			if _, err := Admit(t.Context(), Request{Root: root, Slots: fakeSlots{}}); err != nil {
				t.Fatal(err)
			}
			if got, err := there(root, paths.Complete); err != nil || (len(got) == 1) != test.want {
				t.Errorf("marker = %v, %v, want %v", got, err, test.want)
			}
		})
	}
}

func TestFinish(t *testing.T) {
	root := host(t, map[string]string{paths.Record: recordJSON(t, func(*record.Record) {})})
	for range 2 {
		before := snapshot(t, root)
		r, err := Finish(t.Context(), root)
		if err != nil || r.Phase != record.Complete {
			t.Fatalf("Finish() = %+v, %v, want phase complete", r, err)
		}
		if before[paths.At(root, paths.Complete)] != "" {
			if diff := cmp.Diff(before, snapshot(t, root)); diff != "" {
				t.Errorf("the second Finish() wrote:\n%s", diff)
			}
		}
	}
	root = host(t, map[string]string{paths.Record: recordJSON(t, func(r *record.Record) { r.Phase = record.Resetting })})
	if _, err := Finish(t.Context(), root); exit.Of(err) != exit.Refused {
		t.Errorf("Finish() during a reset = %v, want a refusal", err)
	}
}

func TestPublicFixturesAreAdmitted(t *testing.T) {
	for phase, want := range map[string]exit.Status{"installing": exit.OK, "complete": exit.OK, "resetting": exit.Refused} {
		data, err := os.ReadFile("../record/testdata/bootstrap-v1/" + phase + ".json")
		if err != nil {
			t.Fatal(err)
		}
		root := host(t, map[string]string{
			paths.Record: string(data),
			paths.Config: configJSON("fixture-machine", "v1.34.0", "example.test/unbounded/node:fixture", "https://api.example.test:6443"),
		})
		r, err := Admit(t.Context(), Request{Root: root, Prefix: paths.DefaultRoot, Slots: fakeSlots{}})
		if exit.Of(err) != want {
			t.Errorf("%s: Admit() = %v, want status %d", phase, err, want)
		}
		if r.InstallID != "00112233445566778899aabbccddeeff" || r.Prefix != "" {
			t.Errorf("%s: record = %+v, want the fixture's installID and no prefix (it means %s)", phase, r, paths.LegacyRoot)
		}
	}
}

// The record of the public agent does not say what its fingerprint was made of: the applied configuration does.
func TestDifferenceOfAPublicRecord(t *testing.T) {
	bare := recordJSON(t, func(r *record.Record) { r.Inputs = record.Inputs{} })
	asked := configJSON("m1", "v1.40.0", "r.test/node:1", "https://api.test:6443")
	for _, test := range []struct {
		name    string
		applied string
		says    string
	}{
		{"known", plain, `Cluster.Version is "1.37.2", the configuration says "1.40.0"`},
		{"unknown", `{}`, "another Kubernetes version, image or API server"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := host(t, map[string]string{paths.Record: bare, paths.Config: asked, paths.Applied("kube1"): test.applied})
			_, err := Admit(t.Context(), Request{Root: root, Slots: fakeSlots{}})
			if exit.Of(err) != exit.Refused || !strings.Contains(err.Error(), test.says) {
				t.Errorf("Admit() = %v, want a refusal that says %q", err, test.says)
			}
		})
	}
}

// A new signature on an image URL is the same installation, and the stages get the new one.
func TestSignedImageIsRefreshed(t *testing.T) {
	root := host(t, map[string]string{paths.Config: configJSON("m1", "v1.37.2", "https://e.test/i.tar?sig=old", "https://api.test")})
	request := Request{Root: root, Slots: fakeSlots{}}
	first, err := Admit(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	refreshed := configJSON("m1", "v1.37.2", "https://e.test/i.tar?sig=new", "https://api.test")
	if err := durable.Replace(paths.At(root, paths.Config), []byte(refreshed), 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := Admit(t.Context(), request)
	if err != nil || second.InstallID != first.InstallID {
		t.Errorf("Admit() = %+v, %v, want the same installation", second, err)
	}
	if data, err := os.ReadFile(paths.At(root, paths.Admitted)); err != nil || string(data) != refreshed {
		t.Errorf("admitted = %q, %v, want the new signature", data, err)
	}
	if data, err := os.ReadFile(paths.At(root, paths.Record)); err != nil || strings.Contains(string(data), "sig=") {
		t.Errorf("record = %s, %v, want no signature in it", data, err)
	}
}

// First starts at the same moment: one record, and nobody takes the other's work for a foreign deployment.
func TestConcurrentFirstStarts(t *testing.T) {
	root := host(t, nil)
	ids := make([]string, 20)
	var wait sync.WaitGroup
	for i := range ids {
		wait.Go(func() {
			r, err := Admit(t.Context(), Request{Root: root, Slots: fakeSlots{}})
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = r.InstallID
			if err := os.MkdirAll(paths.At(root, paths.Tree("kube1")), 0o755); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("installIDs differ: %v", ids)
		}
	}
}

// A start that was killed while it wrote the configuration for the stages has left it in a temporary file.
func TestAdmitSweeps(t *testing.T) {
	root := host(t, nil)
	left := paths.At(root, paths.Run+"/"+durable.TempName("admitted.json"))
	if err := durable.Replace(left, []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Admit(t.Context(), Request{Root: root, Slots: fakeSlots{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v, want it gone", left, err)
	}
}
