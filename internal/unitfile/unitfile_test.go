package unitfile

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

	"unbounded/internal/durable"
	"unbounded/internal/journal"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

// fakeManager has units that do what they are told; onStop says what happens besides.
type fakeManager struct {
	units  map[string]*systemd.Properties
	calls  []string
	onStop func(unit string)
	broken map[string]error // by "verb unit"
}

func (f *fakeManager) call(what string) error {
	f.calls = append(f.calls, what)
	return f.broken[what]
}

func (f *fakeManager) Properties(_ context.Context, unit string) (systemd.Properties, error) {
	if strings.Contains(unit, "@.") {
		return systemd.Properties{}, errors.New("a template cannot be loaded")
	}
	if p := f.units[unit]; p != nil {
		return *p, nil
	}
	return systemd.Properties{LoadState: "not-found", ActiveState: "inactive"}, nil
}

func (f *fakeManager) Stop(_ context.Context, unit string) (systemd.Properties, error) {
	if err := f.call("stop " + unit); err != nil {
		return systemd.Properties{}, err
	}
	f.units[unit].ActiveState = "inactive"
	if f.onStop != nil {
		f.onStop(unit)
	}
	return *f.units[unit], nil
}

func (f *fakeManager) Disable(_ context.Context, unit string) (bool, error) {
	return false, f.broken["disable "+unit]
}

func (f *fakeManager) ResetFailed(_ context.Context, unit string) error {
	f.units[unit].ActiveState = "inactive"
	return f.call("reset-failed " + unit)
}

func (f *fakeManager) Reload(context.Context) error {
	for _, p := range f.units {
		p.LoadState, p.FragmentPath = "not-found", ""
	}
	return f.call("reload")
}

const (
	daemon   = "d.service"
	recovery = "r.service"
)

// lay makes files, and links where the content begins with "->".
func lay(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range files {
		path = paths.At(root, path)
		if target, ok := strings.CutPrefix(content, "->"); ok {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := durable.Replace(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func list(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, strings.TrimPrefix(path, root))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestRetire(t *testing.T) {
	const etc = paths.SystemdDir
	root := lay(t, map[string]string{
		etc + "/" + daemon:                               "[Service]\n",
		etc + "/" + daemon + ".d/proxy.conf":             "[Service]\n",
		etc + "/multi-user.target.wants/" + daemon:       "->../" + daemon,
		etc + "/multi-user.target.wants/ssh.service":     "->/lib/systemd/system/ssh.service",
		etc + "/x@.service.requires/" + daemon:           "->../" + daemon,
		etc + "/" + recovery:                             "[Service]\n",
		"/run/systemd/system/" + daemon + ".d/50-x.conf": "[Service]\n",
	})
	manager := &fakeManager{units: map[string]*systemd.Properties{
		daemon:   {LoadState: "loaded", ActiveState: "active", FragmentPath: etc + "/" + daemon},
		recovery: {LoadState: "loaded", ActiveState: "failed", FragmentPath: etc + "/" + recovery},
	}}
	var out bytes.Buffer
	for _, round := range []string{"first", "second"} {
		if err := Retire(t.Context(), root, manager, journal.To(&out), recovery, daemon); err != nil {
			t.Fatal(err)
		}
		want := []string{"stop " + daemon, "reload", "reset-failed " + recovery}
		if round == "second" {
			want = nil
			if out.Len() > 0 {
				t.Errorf("the second run said %q", &out)
			}
		}
		if diff := cmp.Diff(want, manager.calls); diff != "" {
			t.Errorf("%s run, calls (-want +got):\n%s", round, diff)
		}
		want = []string{
			"", "/etc", "/etc/systemd", etc, etc + "/multi-user.target.wants", etc + "/multi-user.target.wants/ssh.service",
			"/run", "/run/systemd", "/run/systemd/system",
		}
		if diff := cmp.Diff(want, list(t, root)); diff != "" {
			t.Errorf("%s run, files (-want +got):\n%s", round, diff)
		}
		manager.calls = nil
		out.Reset()
	}
}

// A run that was killed before the reload left a unit loaded whose file is gone.
func TestRetireReloadsLate(t *testing.T) {
	manager := &fakeManager{units: map[string]*systemd.Properties{
		daemon: {LoadState: "loaded", ActiveState: "inactive", FragmentPath: paths.SystemdDir + "/" + daemon},
	}}
	if err := Retire(t.Context(), t.TempDir(), manager, journal.To(&bytes.Buffer{}), daemon); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(manager.calls, []string{"reload"}) {
		t.Errorf("calls = %q, want a reload", manager.calls)
	}
}

func TestRetireStopsAtAFailure(t *testing.T) {
	for _, test := range []struct {
		name   string
		broken map[string]error
		onStop bool
		says   string
	}{
		{name: "stop", broken: map[string]error{"stop " + daemon: errors.New("stop d.service: timeout")}, says: "systemctl status d.service"},
		{name: "disable", broken: map[string]error{"disable " + daemon: errors.New("read-only")}, says: "keep d.service from starting at boot"},
		{name: "it comes back", onStop: true, says: "although it was stopped"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := lay(t, map[string]string{paths.SystemdDir + "/" + daemon: "x"})
			manager := &fakeManager{broken: test.broken, units: map[string]*systemd.Properties{daemon: {LoadState: "loaded", ActiveState: "active"}}}
			if test.onStop {
				manager.onStop = func(unit string) { manager.units[unit].ActiveState = "activating" }
			}
			err := Retire(t.Context(), root, manager, journal.To(&bytes.Buffer{}), daemon)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("Retire() = %v, want %q", err, test.says)
			}
			if _, err := os.Lstat(paths.At(root, paths.SystemdDir+"/"+daemon)); err != nil {
				t.Errorf("the unit file: %v, want it there", err)
			}
		})
	}
}
