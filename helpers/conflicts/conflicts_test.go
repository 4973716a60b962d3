package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/before"
	"unbounded/internal/config"
	"unbounded/internal/dropin"
	"unbounded/internal/fstab"
	"unbounded/internal/journal"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

// fakeUnits is a service manager: drop-ins are in effect after a reload, and only then may a unit be stopped.
type fakeUnits struct {
	root   string
	units  map[string]*systemd.Properties
	calls  []string
	broken error
	fails  map[string]error // to start, by unit
}

func (f *fakeUnits) Properties(_ context.Context, unit string) (systemd.Properties, error) {
	if p := f.units[unit]; p != nil {
		return *p, f.broken
	}
	return systemd.Properties{LoadState: "not-found", ActiveState: "inactive"}, f.broken
}

func (f *fakeUnits) ListUnits(context.Context, ...string) (map[string]string, error) {
	found := map[string]string{}
	for name, p := range f.units {
		if strings.HasSuffix(name, ".swap") {
			found[name] = p.ActiveState
		}
	}
	return found, nil
}

func (f *fakeUnits) Reload(context.Context) error {
	f.calls = append(f.calls, "reload")
	for name, p := range f.units {
		path := paths.ConditionDropIn(name)
		p.DropInPaths = nil
		for _, path := range []string{path, dropin.QuietPath(name)} {
			if _, err := os.Stat(filepath.Join(f.root, path)); err == nil {
				p.DropInPaths = append(p.DropInPaths, path)
			}
		}
	}
	return nil
}

func (f *fakeUnits) Stop(_ context.Context, unit string) (systemd.Properties, error) {
	f.calls = append(f.calls, "stop "+unit)
	p := f.units[unit]
	if !slices.Contains(p.DropInPaths, paths.ConditionDropIn(unit)) {
		return *p, errors.New("stopped before its drop-in was in effect")
	}
	p.ActiveState = "inactive"
	return *p, nil
}

func loaded(active string) *systemd.Properties {
	return &systemd.Properties{LoadState: "loaded", ActiveState: active, FragmentPath: "/lib/systemd/system/x"}
}

type setup struct {
	host
	units *fakeUnits
	log   *bytes.Buffer
	off   *[]string
}

func newHost(t *testing.T) setup {
	t.Helper()
	root := t.TempDir()
	write(t, root, "/proc/sys/kernel/random/boot_id", "boot-1\n")
	write(t, root, "/proc/swaps", "Filename Type Size Used Priority\n")
	var log bytes.Buffer
	var off []string
	units := &fakeUnits{root: root, units: map[string]*systemd.Properties{}}
	env := &stage.Env{Root: root, Log: journal.To(&log), Config: &config.Config{HostFirewall: config.FirewallClean}}
	return setup{
		host: host{env, units, func(_, path string) error {
			off = append(off, path)
			units.area("Filename Type Size Used Priority\n")
			return nil
		}},
		units: units, log: &log, off: &off,
	}
}

func write(t *testing.T, root, path, content string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, root, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}

func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			files[path] = info.ModTime().String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// busy is a host on which everything that can be in the way is.
func busy(t *testing.T) setup {
	t.Helper()
	s := newHost(t)
	for _, unit := range []string{"docker.socket", "docker.service", "nftables.service"} {
		s.units.units[unit] = loaded("active")
	}
	s.units.units["containerd.service"] = loaded("inactive")
	s.units.units["systemd-networkd.service"] = &systemd.Properties{LoadState: "loaded", ActiveState: "inactive", UnitFileState: "enabled"}
	s.units.units["dev-zram0.swap"] = loaded("active")
	s.units.units["dev-sda2.swap"] = &systemd.Properties{LoadState: "loaded", ActiveState: "active", FragmentPath: "/run/x", SourcePath: fstab.File}
	write(t, s.Root, "/usr/bin/apt-get", "")
	write(t, s.Root, fstab.File, "UUID=1 / ext4 defaults 0 1\n/dev/sda2 none swap sw 0 0\n")
	write(t, s.Root, "/etc/docker/daemon.json", `{"debug": true}`)
	write(t, s.Root, "/proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 100 0 -2\n")
	return s
}

func TestConvergeTwice(t *testing.T) {
	s := busy(t)
	if err := s.converge(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"reload", "stop docker.socket", "stop docker.service", "stop nftables.service"}
	if diff := cmp.Diff(want, s.units.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/dev/sda2"}, *s.off); diff != "" {
		t.Errorf("swap turned off (-want +got):\n%s", diff)
	}
	if got, want := read(t, s.Root, fstab.File), "UUID=1 / ext4 defaults 0 1\n# unbounded: /dev/sda2 none swap sw 0 0\n"; got != want {
		t.Errorf("fstab = %q, want %q", got, want)
	}
	if got := read(t, s.Root, "/etc/docker/daemon.json"); !strings.Contains(got, `"iptables": false`) || !strings.Contains(got, `"debug": true`) {
		t.Errorf("daemon.json = %q", got)
	}
	for path, there := range map[string]bool{
		paths.ConditionDropIn("kubelet.service"):              true,
		paths.ConditionDropIn("dev-zram0.swap"):               true,
		paths.ConditionDropIn("dev-sda2.swap"):                false,
		"/etc/systemd/networkd.conf.d/99-unbounded.conf":      true,
		"/etc/apt/apt.conf.d/99-unbounded-no-restart-systemd": true,
		"/etc/needrestart/conf.d/99-unbounded.conf":           false,
	} {
		if got := read(t, s.Root, path) != ""; got != there {
			t.Errorf("%s is there: %v, want %v", path, got, there)
		}
	}
	image, err := before.Load(s.Root, concern)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range []struct {
		kind   before.Kind
		object string
	}{
		{before.Unit, "docker.service"},
		{before.Swap, "/dev/sda2"},
		{before.Line, "/etc/fstab:/dev/sda2 none swap sw 0 0"},
		{before.Key, "/etc/docker/daemon.json:iptables"},
		{before.File, paths.ConditionDropIn("docker.service")},
	} {
		if !image.Has(entry.kind, entry.object) {
			t.Errorf("no before-image of %s %s", entry.kind, entry.object)
		}
	}

	first := tree(t, s.Root)
	s.units.calls = nil
	s.log.Reset()
	if err := s.converge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, tree(t, s.Root)); diff != "" || s.units.calls != nil || s.log.Len() > 0 {
		t.Errorf("the second run called %v, said %q and changed:\n%s", s.units.calls, s.log, diff)
	}
}

// Killed at any point, the next attempt does what is left: here, everything but the files is left.
func TestConvergeAfterKill(t *testing.T) {
	s := busy(t)
	s.units.broken = nil
	seen, err := s.look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	onDisk, err := s.onDisk(seen)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.write(onDisk); err != nil {
		t.Fatal(err)
	}
	if err := s.converge(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"reload", "stop docker.socket", "stop docker.service", "stop nftables.service"}
	if diff := cmp.Diff(want, s.units.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// Somebody removed the drop-in and let docker run again.
func TestConvergeDrift(t *testing.T) {
	s := busy(t)
	if err := s.converge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.Root, paths.ConditionDropIn("docker.service"))); err != nil {
		t.Fatal(err)
	}
	if err := s.units.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.units.units["docker.service"].ActiveState = "active"
	s.units.calls = nil
	if err := s.converge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"reload", "stop docker.service"}, s.units.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestKeepFirewall(t *testing.T) {
	s := busy(t)
	if err := s.converge(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.units.units["nftables.service"].ActiveState = "active"
	s.units.calls = nil
	s.Config.HostFirewall = config.FirewallKeep
	if err := s.converge(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, unit := range paths.Firewalls() {
		if read(t, s.Root, paths.ConditionDropIn(unit)) != "" {
			t.Errorf("the drop-in of %s is still there", unit)
		}
	}
	if diff := cmp.Diff([]string{"reload"}, s.units.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestUnreadableDaemonFileIsLeft(t *testing.T) {
	s := busy(t)
	write(t, s.Root, "/etc/docker/daemon.json", "{ broken")
	if err := s.converge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, s.Root, "/etc/docker/daemon.json"); got != "{ broken" {
		t.Errorf("daemon.json = %q, want it left", got)
	}
	if !strings.Contains(s.log.String(), "/etc/docker/daemon.json") {
		t.Errorf("no warning in %q", s.log)
	}
}

func TestManagerAway(t *testing.T) {
	s := busy(t)
	s.units.broken = errors.New("bus is away")
	first := tree(t, s.Root)
	if err := s.converge(t.Context()); err == nil {
		t.Error("converge succeeded")
	}
	if diff := cmp.Diff(first, tree(t, s.Root)); diff != "" {
		t.Errorf("it changed:\n%s", diff)
	}
}
