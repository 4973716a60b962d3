package cgroup

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestPopulated(t *testing.T) {
	t.Parallel()
	const usual = "/machine.slice/systemd-nspawn@kube1.service"
	tests := []struct {
		name  string
		files map[string]string
		named string
		want  bool
	}{
		{"no cgroup", nil, "", false},
		{"empty", map[string]string{usual: "populated 0\nfrozen 0\n"}, "", false},
		{"left behind, name forgotten", map[string]string{usual: "populated 1\nfrozen 0\n"}, "", true},
		{"left behind, elsewhere", map[string]string{"other.slice/x": "frozen 0\npopulated 1\n"}, "/other.slice/x", true},
		{"named one is empty, usual one is not", map[string]string{"other.slice/x": "populated 0\n", usual: "populated 1\n"}, "/other.slice/x", true},
		{"hybrid hierarchy", map[string]string{"unified" + usual: "populated 1\n"}, "", true},
		{"another slot", map[string]string{"machine.slice/systemd-nspawn@kube2.service": "populated 1\n"}, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for dir, content := range tt.files {
				write(t, filepath.Join(root, dir, "cgroup.events"), content)
			}
			got, err := populated([]string{root, root + "/unified"}, []string{tt.named, usual})
			if err != nil || got != tt.want {
				t.Errorf("populated() = %v, %v, want %v", got, err, tt.want)
			}
		})
	}
}

func TestPopulatedCannotTell(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root+"/x/cgroup.events/in-the-way", "") // reading a folder fails, as EIO would
	if got, err := populated([]string{root}, []string{"/x"}); err == nil {
		t.Errorf("populated() = %v, want an error", got)
	}
}

func TestLeader(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root+"/unified/m/payload/init.scope/cgroup.procs", "123\n")
	write(t, root+"/n/payload/init.scope/cgroup.procs", "")
	mounts := []string{root, root + "/unified"}
	if got, err := leader(mounts, "/m"); err != nil || got != 123 {
		t.Errorf("leader() = %d, %v, want 123", got, err)
	}
	for _, group := range []string{"/n", "/nothing"} {
		if got, err := leader(mounts, group); err == nil {
			t.Errorf("leader(%s) = %d, want an error", group, got)
		}
	}
}

func TestAwaitEmpty(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := AwaitEmpty(ctx, "/no-such.slice/unit.service"); err != nil {
		t.Errorf("AwaitEmpty() of no cgroup = %v", err)
	}
}

func TestKill(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root+"/unified/machine.slice/x/cgroup.kill", "")
	if err := kill([]string{root, root + "/unified"}, []string{"", "/machine.slice/x", "/machine.slice/gone"}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(root + "/unified/machine.slice/x/cgroup.kill"); err != nil || string(got) != "1" {
		t.Errorf("cgroup.kill has %q, %v, want 1", got, err)
	}
	if _, err := os.Stat(root + "/machine.slice"); err == nil {
		t.Error("a group was made")
	}
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root+"/machine.slice/x/cgroup.procs", "")
	write(t, root+"/machine.slice/x/payload/system.slice/cgroup.procs", "7\n8\n")
	write(t, root+"/machine.slice/y/cgroup.procs", "9\n")
	write(t, root+"/proc/7/comm", "containerd-shim\n")
	got := processes(root+"/proc", []string{root, root + "/unified"}, []string{"", "/machine.slice/x", "/machine.slice/x", "/machine.slice/gone"})
	if want := []string{"7 (containerd-shim)", "8 ()"}; !slices.Equal(got, want) {
		t.Errorf("processes() = %q, want %q", got, want)
	}
}
