package main

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/before"
	"unbounded/internal/dropin"
	"unbounded/internal/fstab"
	"unbounded/internal/hardening"
	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/internal/systemd"
)

// Start does what systemd would: nothing where a drop-in of ours still is in effect, and where a quiet one is, nothing is run.
func (f *fakeUnits) Start(_ context.Context, unit string) (systemd.Properties, error) {
	p := f.units[unit]
	if p == nil {
		p = &systemd.Properties{}
		f.units[unit] = p
	}
	if slices.Contains(p.DropInPaths, paths.ConditionDropIn(unit)) {
		return *p, nil
	}
	if err := f.fails[unit]; err != nil {
		p.ActiveState = "failed"
		return *p, err
	}
	if strings.HasSuffix(unit, ".swap") {
		f.area(areaOn)
	}
	how := "start "
	if slices.Contains(p.DropInPaths, dropin.QuietPath(unit)) {
		how = "quiet start "
	}
	f.calls = append(f.calls, how+unit)
	p.ActiveState, p.ConditionResult = "active", true
	return *p, nil
}

// areaOn is /proc/swaps with the area of the busy host on, by its unit.
const areaOn = "Filename Type Size Used Priority\n/dev/sda2 partition 100 0 -2\n"

// area makes swaps what /proc/swaps says, and its unit follow.
func (f *fakeUnits) area(swaps string) {
	if err := os.WriteFile(filepath.Join(f.root, "/proc/swaps"), []byte(swaps), 0o644); err != nil {
		panic(err)
	}
	if p := f.units["dev-sda2.swap"]; p != nil {
		p.ActiveState = "inactive"
		if strings.Contains(swaps, "/dev/sda2") {
			p.ActiveState = "active"
		}
	}
}

func (f *fakeUnits) Oneshot(_ context.Context, unit string) (bool, error) {
	return f.units[unit].SubState == "exited", nil
}

func (f *fakeUnits) Area(_ context.Context, unit string) (string, error) {
	return "/dev/" + strings.TrimSuffix(strings.TrimPrefix(unit, "dev-"), ".swap"), nil
}

// files is what is below root but for the before-images, the boot and what /proc says: content, mode and mtime.
func files(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		if name == "/var" || name == "/proc" {
			return fs.SkipDir
		}
		all[name] = entry.Type().String()
		if entry.Type().IsRegular() {
			data, err := os.ReadFile(path)
			all[name] += string(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (s setup) giver(t *testing.T) giver {
	t.Helper()
	return giver{
		s.Env, s.units, func(_, path, priority string) error {
			s.units.calls = append(s.units.calls, "swapon "+priority+" "+path)
			s.units.area(strings.Replace(areaOn, "-2", priority, 1))
			return nil
		}, func(_, path string) error {
			s.units.calls = append(s.units.calls, "swapoff "+path)
			s.units.area("Filename Type Size Used Priority\n")
			return nil
		},
	}
}

func states(units map[string]*systemd.Properties) map[string]string {
	all := map[string]string{}
	for name, p := range units {
		all[name] = p.ActiveState
	}
	return all
}

func reboot(t *testing.T, s setup) {
	t.Helper()
	write(t, s.Root, "/proc/sys/kernel/random/boot_id", "boot-2\n")
	if err := os.RemoveAll(filepath.Join(s.Root, "run")); err != nil {
		t.Fatal(err)
	}
	if err := s.units.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.units.calls = nil
}

// sameBoot is what is done on the busy host in the boot in which it was taken.
var sameBoot = []string{"reload", "quiet start nftables.service", "start docker.socket", "start docker.service", "start dev-sda2.swap", "reload"}

const image = "/var/lib/unbounded/agent/before/conflicts.json"

func TestRemove(t *testing.T) {
	broken := errors.New("it is broken")
	for _, test := range []struct {
		name    string
		before  func(t *testing.T, s setup)
		between func(t *testing.T, s setup)
		calls   []string
		differs map[string]string // files that do not come back; "" for none
		down    []string          // units that do not
		says    []string
		fails   string
	}{
		{name: "same boot", calls: sameBoot},
		{
			name:   "a priority given by hand",
			before: func(_ *testing.T, s setup) { s.units.area(strings.Replace(areaOn, "-2", "5", 1)) },
			calls: []string{
				"reload", "quiet start nftables.service", "start docker.socket", "start docker.service",
				"start dev-sda2.swap", "swapoff /dev/sda2", "swapon 5 /dev/sda2", "reload",
			},
		},
		{
			name:   "an area without a unit",
			before: func(_ *testing.T, s setup) { delete(s.units.units, "dev-sda2.swap") },
			calls:  []string{"reload", "quiet start nftables.service", "start docker.socket", "start docker.service", "swapon -2 /dev/sda2", "reload"},
		},
		{
			name: "another boot", between: reboot,
			calls: []string{"reload", "start nftables.service", "start docker.socket", "start docker.service", "start swap.target"},
		},
		{
			name: "another boot, one is disabled",
			between: func(t *testing.T, s setup) {
				t.Helper()
				reboot(t, s)
				s.units.units["docker.service"].UnitFileState = "disabled"
			},
			calls: []string{"reload", "start nftables.service", "start docker.socket", "start swap.target"},
			down:  []string{"docker.service"}, says: []string{"docker.service ran before and is not started: it was disabled since"},
		},
		{
			name: "masked, removed, disabled since",
			between: func(_ *testing.T, s setup) {
				s.units.units["docker.service"].LoadState = "masked"
				s.units.units["docker.socket"].LoadState = "not-found"
				s.units.units["nftables.service"].UnitFileState = "disabled"
			},
			calls: []string{"reload", "start dev-sda2.swap"},
			down:  []string{"docker.service", "docker.socket", "nftables.service"},
			says:  []string{"docker.service ran before and is not started: it was masked", "docker.socket ran before", "nftables.service ran before"},
		},
		{
			name: "files were changed since",
			between: func(t *testing.T, s setup) {
				t.Helper()
				write(t, s.Root, "/etc/docker/daemon.json", `{"iptables": true}`)
				write(t, s.Root, fstab.File, "UUID=1 / ext4 defaults 0 1\n")
				write(t, s.Root, "/etc/apt/apt.conf.d/99-unbounded-no-restart-systemd", "mine")
			},
			calls: sameBoot,
			differs: map[string]string{
				"/etc/docker/daemon.json": `{"iptables": true}`, fstab.File: "UUID=1 / ext4 defaults 0 1\n",
				"/etc/apt/apt.conf.d/99-unbounded-no-restart-systemd": "mine",
			},
			says: []string{"/etc/docker/daemon.json:iptables was", fstab.File + ":/dev/sda2 none swap sw 0 0 was", "99-unbounded-no-restart-systemd was"},
		},
		{
			name: "more was written to the same files",
			between: func(t *testing.T, s setup) {
				t.Helper()
				write(t, s.Root, fstab.File, read(t, s.Root, fstab.File)+"/dev/sdc /c ext4 defaults 0 2\n")
				write(t, s.Root, "/etc/docker/daemon.json", `{"log-level": "warn", "iptables": false, "debug": true}`)
				write(t, s.Root, filepath.Dir(paths.ConditionDropIn("docker.service"))+"/mine.conf", "[Service]\n")
			},
			calls: sameBoot,
			differs: map[string]string{
				fstab.File:                "UUID=1 / ext4 defaults 0 1\n/dev/sda2 none swap sw 0 0\n/dev/sdc /c ext4 defaults 0 2\n",
				"/etc/docker/daemon.json": `{"log-level": "warn", "debug": true}`,
				filepath.Dir(paths.ConditionDropIn("docker.service")) + "/mine.conf": "[Service]\n",
			},
		},
		{
			name: "daemon.json is broken since",
			between: func(t *testing.T, s setup) {
				t.Helper()
				write(t, s.Root, "/etc/docker/daemon.json", "{ broken")
			},
			calls: sameBoot, differs: map[string]string{"/etc/docker/daemon.json": "{ broken"},
			says: []string{"/etc/docker/daemon.json:iptables was"},
		},
		{
			name: "the area is gone",
			between: func(t *testing.T, s setup) {
				t.Helper()
				if err := os.Remove(filepath.Join(s.Root, "/dev/sda2")); err != nil {
					t.Fatal(err)
				}
			},
			calls:   []string{"reload", "quiet start nftables.service", "start docker.socket", "start docker.service", "reload"},
			down:    []string{"dev-sda2.swap"},
			differs: map[string]string{"/dev/sda2": ""}, says: []string{"swap area /dev/sda2 is gone"},
		},
		{
			name: "killed after the save",
			between: func(t *testing.T, s setup) {
				t.Helper()
				saved := read(t, s.Root, image)
				if err := s.giver(t).remove(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.units.calls = nil
				write(t, s.Root, image, saved) // which also is: killed before the image was discarded
			},
			calls: []string{"reload"},
		},
		{
			name: "killed with files put back and a firewall quiet",
			between: func(t *testing.T, s setup) {
				t.Helper()
				g := s.giver(t)
				image, err := before.Load(s.Root, concern)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range image.Entries() {
					if err := g.restoreOnDisk(e); err != nil {
						t.Fatal(err)
					}
				}
				if err := g.quiet([]launch{{"nftables.service", true}}); err != nil {
					t.Fatal(err)
				}
			},
			calls: sameBoot,
		},
		{
			name: "a service does not start",
			between: func(_ *testing.T, s setup) {
				s.units.fails = map[string]error{"docker.service": broken}
			},
			fails: "it is broken; see `systemctl status docker.service`, repair, disable or mask it",
		},
		{
			name: "a service did not start, and was disabled",
			between: func(t *testing.T, s setup) {
				t.Helper()
				s.units.fails = map[string]error{"docker.service": broken}
				if err := s.giver(t).remove(t.Context()); !errors.Is(err, broken) {
					t.Errorf("remove = %v, want %v", err, broken)
				}
				if left := read(t, s.Root, dropin.QuietPath("nftables.service")); left != "" {
					t.Errorf("a quiet drop-in is left: %q", left)
				}
				s.units.units["docker.service"].UnitFileState = "disabled"
				s.units.calls = nil
			},
			calls: []string{"reload", "start dev-sda2.swap"}, down: []string{"docker.service"}, says: []string{"docker.service ran before"},
		},
		{
			name: "installed again after half a reset",
			between: func(t *testing.T, s setup) {
				t.Helper()
				s.units.fails = map[string]error{"docker.service": broken}
				if err := s.giver(t).remove(t.Context()); !errors.Is(err, broken) {
					t.Errorf("remove = %v, want %v", err, broken)
				}
				s.units.fails = nil
				if err := s.converge(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.units.calls = nil
			},
			calls: sameBoot,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := busy(t)
			write(t, s.Root, "/dev/sda2", "")
			s.units.units["nftables.service"].SubState = "exited"
			s.units.units["nftables.service"].UnitFileState = "enabled"
			s.units.units["docker.service"].UnitFileState = "enabled"
			if test.before != nil {
				test.before(t, s)
			}
			want, running := files(t, s.Root), states(s.units.units)
			if err := s.converge(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.units.calls = nil
			if test.between != nil {
				test.between(t, s)
			}
			s.log.Reset()
			err := s.giver(t).remove(t.Context())
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) || read(t, s.Root, image) == "" {
					t.Errorf("remove = %v, want %q and the image kept", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.calls, s.units.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			for path, content := range test.differs {
				for dir := filepath.Dir(path); want[dir] == ""; dir = filepath.Dir(dir) {
					want[dir] = fs.ModeDir.String()
				}
				want[path] = fs.FileMode(0).String() + content
				if content == "" {
					delete(want, path)
				}
			}
			got := files(t, s.Root)
			maps.DeleteFunc(got, func(path, _ string) bool { return strings.HasPrefix(path, "/run") })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("files (-before +after):\n%s", diff)
			}
			for _, unit := range test.down {
				running[unit] = s.units.units[unit].ActiveState
			}
			now := states(s.units.units)
			if strings.Contains(strings.Join(test.calls, " "), "swap.target") {
				now["dev-sda2.swap"] = "active" // which that starts
			}
			delete(now, "swap.target")
			if diff := cmp.Diff(running, now); diff != "" {
				t.Errorf("units (-before +after):\n%s", diff)
			}
			for _, says := range test.says {
				if !strings.Contains(s.log.String(), says) {
					t.Errorf("log has no %q:\n%s", says, s.log)
				}
			}
			if n := strings.Count(s.log.String(), "somebody else") + strings.Count(s.log.String(), "not started") + strings.Count(s.log.String(), "is gone since"); n != len(test.says) {
				t.Errorf("%d things were left, want %d:\n%s", n, len(test.says), s.log)
			}

			first := tree(t, s.Root)
			s.units.calls = nil
			s.log.Reset()
			if err := s.giver(t).remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(first, tree(t, s.Root)); diff != "" || s.units.calls != nil || strings.Contains(s.log.String(), "removed") {
				t.Errorf("the second run called %v, said %q and changed:\n%s", s.units.calls, s.log, diff)
			}
		})
	}
}

// Without its before-image a host loses what shows that it is ours.
func TestRemoveUnnoted(t *testing.T) {
	s := busy(t)
	want := files(t, s.Root)
	if err := s.converge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.Root, image)); err != nil {
		t.Fatal(err)
	}
	s.units.calls = nil
	s.Record = record.Record{Prefix: "/opt/x"}
	if err := s.giver(t).remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := files(t, s.Root)
	want["/etc/docker/daemon.json"] = got["/etc/docker/daemon.json"] // nothing shows who set the key
	for dir := range got {
		if want[dir] == "" && got[dir] == fs.ModeDir.String() { // nor who made a folder
			delete(got, dir)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"reload", "start swap.target"}, s.units.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// The public agent keeps no before-image.
func TestRemoveAgents(t *testing.T) {
	const (
		was  = "UUID=1 / ext4 defaults 0 1\n# a comment on swap\n/swap.img none swap sw 0 0\n"
		apt  = "Unattended-Upgrade::Package-Blacklist {\n \"systemd\";\n \"systemd-container\"; \"systemd-sysv\";\n\"libsystemd0\"; \"libcap2\"; \"libcap2-bin\"; \"libpam-cap\";\n};\n"
		mine = "Unattended-Upgrade::Package-Blacklist { \"systemd\"; \"mine\"; };\n"
	)
	aptFile := hardening.All()[0].Path
	for _, test := range []struct {
		name    string
		foreign bool
		fstab   string
		apt     string
		want    map[string]string
		says    []string
	}{
		{
			name: "the agent's", foreign: true, apt: apt, fstab: strings.Replace(was, "/swap.img", "#/swap.img", 1),
			want: map[string]string{fstab.File: was, fstab.Backup: "", aptFile: ""},
			says: []string{"systemctl unmask docker.service", `/etc/docker/daemon.json says "iptables": false`},
		},
		{
			name: "a blank behind the sign, and a line added since", foreign: true, apt: mine,
			fstab: strings.Replace(was, "/swap.img", "# /swap.img", 1) + "/dev/sdc /c ext4 defaults 0 2\n",
			want:  map[string]string{fstab.File: was + "/dev/sdc /c ext4 defaults 0 2\n", fstab.Backup: was, aptFile: mine},
			says:  []string{fstab.Backup + " is left", aptFile + " is not as"},
		},
		{
			name: "on a host of ours that is the operator's", apt: apt, fstab: strings.Replace(was, "/swap.img", "#/swap.img", 1),
			want: map[string]string{fstab.File: strings.Replace(was, "/swap.img", "#/swap.img", 1), fstab.Backup: was, aptFile: apt},
			says: []string{aptFile + " is not as"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newHost(t)
			if !test.foreign {
				s.Record.Prefix = "/opt/x"
			}
			write(t, s.Root, fstab.File, test.fstab)
			write(t, s.Root, fstab.Backup, was)
			write(t, s.Root, aptFile, test.apt)
			write(t, s.Root, "/etc/docker/daemon.json", `{"iptables": false}`)
			mask := filepath.Join(s.Root, paths.SystemdDir, "docker.service")
			if err := errors.Join(os.MkdirAll(filepath.Dir(mask), 0o755), os.Symlink("/dev/null", mask)); err != nil {
				t.Fatal(err)
			}
			if err := s.giver(t).remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			for path, content := range test.want {
				if got := read(t, s.Root, path); got != content {
					t.Errorf("%s = %q, want %q", path, got, content)
				}
			}
			for _, says := range test.says {
				if !strings.Contains(s.log.String(), says) {
					t.Errorf("log has no %q:\n%s", says, s.log)
				}
			}
			if _, err := os.Lstat(mask); err != nil {
				t.Errorf("the mask: %v", err)
			}
		})
	}
}
