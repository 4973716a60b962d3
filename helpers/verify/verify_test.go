package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"unbounded/internal/installed"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
	"unbounded/units"
)

// fake answers for units that run, but for those it names.
type fake map[string]systemd.Properties

func (f fake) Properties(_ context.Context, unit string) (systemd.Properties, error) {
	if p, ok := f[unit]; ok {
		return p, nil
	}
	return systemd.Properties{ActiveState: "active", UnitFileState: "enabled", LoadState: "loaded"}, nil
}

const applied = `{"MachineName": "m1", "Cluster": {"CaCertBase64": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCllRPT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=", "ClusterDNS": "10.0.0.10", "Version": "1.34.0"},
"Kubelet": {"ApiServer": "https://api.example.test:6443", "Auth": {"BootstrapToken": "abcdef.0123456789abcdef"}}, "OCIImage": "example.test/node:v1"}
`

func sum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// complete makes a host on which everything is as the record claims.
func complete(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write := func(path, content string, mode os.FileMode) {
		t.Helper()
		path = paths.At(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	rendered, err := units.Rendered(paths.DefaultRoot)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range rendered {
		write(paths.SystemdDir+"/"+name, content, 0o644)
		root, programs := installed.Starts(content)
		for _, program := range programs {
			write(root+"/slots/blue/"+filepath.Base(program), "#!", 0o755)
		}
	}
	if err := os.Symlink("slots/blue", paths.At(root, paths.DefaultRoot+"/current")); err != nil {
		t.Fatal(err)
	}
	write(paths.Complete, "", 0o600)
	write(paths.Active("kube1"), "", 0o600)
	write(paths.Nspawn("kube1"), "[Exec]\n", 0o644)
	write(paths.DropInFile("kube1"), "[Unit]\n", 0o644)
	write(paths.Applied("kube1"), applied, 0o600)
	write(paths.Applied("kube1")+".sha256", sum(applied)+"\n", 0o600)
	return root
}

func TestVerify(t *testing.T) {
	inactive := systemd.Properties{ActiveState: "inactive", LoadState: "loaded", UnitFileState: "disabled"}
	other := fake{paths.MachineUnit("kube2"): inactive}
	for _, test := range []struct {
		name   string
		damage func(t *testing.T, root string)
		host   fake
		inner  fake
		want   []string // in the one line, in this order
	}{
		{name: "well"},
		{name: "no marker: the applied configuration says where", damage: remove(paths.Active("kube1"))},
		{name: "marker of completion", damage: remove(paths.Complete), want: []string{paths.Complete + " is missing"}},
		{name: "link", damage: remove(paths.DefaultRoot + "/current"), want: []string{"/opt/unbounded/current/unbounded-admission is missing"}},
		{name: "program", damage: chmod(paths.DefaultRoot+"/slots/blue/unbounded-join", 0o644), want: []string{"/opt/unbounded/current/unbounded-join is not executable"}},
		{name: "unit missing", damage: remove(paths.SystemdDir + "/" + paths.KernelUnit), want: []string{"unit " + paths.KernelUnit + " is missing"}},
		{name: "unit edited", damage: write(paths.SystemdDir+"/"+paths.KernelUnit, "[Unit]\n"), want: []string{paths.KernelUnit + " differs from this release's"}},
		{name: "unit anybody may write", damage: chmod(paths.SystemdDir+"/"+paths.KernelUnit, 0o666), want: []string{"mode 0666, want 0644"}},
		{name: "settings", damage: remove(paths.Nspawn("kube1")), want: []string{paths.Nspawn("kube1") + " is missing"}},
		{name: "empty drop-in", damage: write(paths.DropInFile("kube1"), ""), want: []string{paths.DropInFile("kube1") + " is empty"}},
		{name: "readable secrets", damage: chmod(paths.Applied("kube1"), 0o644), want: []string{"mode 0644, want 0600"}},
		{name: "checksum", damage: write(paths.Applied("kube1"), strings.Replace(applied, "m1", "m2", 1)), want: []string{".sha256 is not the checksum"}},
		{name: "no checksum", damage: remove(paths.Applied("kube1") + ".sha256"), want: []string{".sha256 is missing"}},
		{name: "unusable", damage: write(paths.Applied("kube1"), "{}"), want: []string{"cannot be used: config: ", ".sha256 is not the checksum"}},
		{name: "nothing says where", damage: func(t *testing.T, root string) {
			t.Helper()
			remove(paths.Active("kube1"))(t, root)
			remove(paths.Applied("kube1"))(t, root)
		}, want: []string{"says where the node runs"}},
		{name: "two markers", damage: create(paths.Active("kube2")), want: []string{"only one machine can be the node"}},
		{name: "machine", host: fake{paths.MachineUnit("kube1"): inactive}, want: []string{"systemd-nspawn@kube1.service is not enabled", "systemd-nspawn@kube1.service is inactive, want active"}},
		{name: "both machines", host: fake{paths.MachineUnit("kube2"): {ActiveState: "activating"}}, want: []string{"systemd-nspawn@kube2.service is activating beside systemd-nspawn@kube1.service"}},
		{name: "kubelet", inner: fake{"kubelet.service": {ActiveState: "failed"}}, want: []string{"kubelet.service in kube1 is failed, want active"}},
		{name: "two things on one line", damage: remove(paths.Nspawn("kube1")), inner: fake{"containerd.service": inactive}, want: []string{"kube1.nspawn is missing; containerd.service in kube1 is inactive"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := complete(t)
			if test.damage != nil {
				test.damage(t, root)
			}
			if test.host == nil {
				test.host = other
			}
			if _, set := test.host[paths.MachineUnit("kube2")]; !set {
				test.host[paths.MachineUnit("kube2")] = inactive
			}
			v := &verification{root: root, prefix: paths.DefaultRoot, host: test.host, inner: func(context.Context, string) (manager, func(), error) {
				return test.inner, func() {}, nil
			}}
			err := v.run(t.Context())
			if (err == nil) != (test.want == nil) {
				t.Fatalf("run: %v, want %q", err, test.want)
			}
			if err == nil {
				return
			}
			rest := err.Error()
			for _, part := range test.want {
				at := strings.Index(rest, part)
				if at < 0 {
					t.Fatalf("run: %v, want %q in it", err, part)
				}
				rest = rest[at+len(part):]
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("run: more than one line: %v", err)
			}
		})
	}
}

func TestVerifyNoMachine(t *testing.T) {
	v := &verification{
		root: complete(t), prefix: paths.DefaultRoot, host: fake{paths.MachineUnit("kube2"): {ActiveState: "inactive"}},
		inner: func(context.Context, string) (manager, func(), error) {
			return nil, nil, errors.New("machine kube1 does not answer")
		},
	}
	if err := v.run(t.Context()); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("run: %v", err)
	}
}

func remove(path string) func(*testing.T, string) {
	return func(t *testing.T, root string) {
		t.Helper()
		if err := os.Remove(paths.At(root, path)); err != nil {
			t.Fatal(err)
		}
	}
}

func chmod(path string, mode os.FileMode) func(*testing.T, string) {
	return func(t *testing.T, root string) {
		t.Helper()
		if err := os.Chmod(paths.At(root, path), mode); err != nil {
			t.Fatal(err)
		}
	}
}

func write(path, content string) func(*testing.T, string) {
	return func(t *testing.T, root string) {
		t.Helper()
		if err := os.WriteFile(paths.At(root, path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func create(path string) func(*testing.T, string) { return write(path, "") }
