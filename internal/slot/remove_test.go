package slot

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"unbounded/internal/journal"
	"unbounded/internal/machined"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

const kube1 = "systemd-nspawn@kube1.service"

// fake is a host with a machine in kube1: PID 1, its cgroups and machined.
type fake struct {
	state   string // of the unit
	group   string // in which it runs
	ignores bool   // a request to stop
	stuck   bool   // its processes cannot be killed
	left    bool   // processes are in its cgroup
	again   int    // how often somebody starts it once it has stopped

	disableErr, resetErr error
	enabled              bool
	scope                string // state of the unit of a machine started by hand
	registrar            string // state of machined's unit
	registered           bool
	forgetErr            error

	calls []string
}

func (f *fake) did(format string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fake) Properties(_ context.Context, unit string) (systemd.Properties, error) {
	if unit == paths.MachinedUnit {
		return systemd.Properties{ActiveState: cmp.Or(f.registrar, "inactive")}, nil
	}
	if unit != kube1 {
		return systemd.Properties{ActiveState: cmp.Or(f.scope, "inactive")}, nil
	}
	return systemd.Properties{ActiveState: f.state, ControlGroup: f.group}, nil
}

func (f *fake) Disable(context.Context, string) (bool, error) {
	if f.disableErr != nil {
		return false, f.disableErr
	}
	was := f.enabled
	f.enabled = false
	return was, nil
}

func (f *fake) Stop(ctx context.Context, unit string) (systemd.Properties, error) {
	f.did("stop")
	if f.ignores || f.stuck {
		<-ctx.Done()
		return systemd.Properties{}, fmt.Errorf("stop %s: wait: %w", unit, context.Cause(ctx))
	}
	if f.state != "failed" {
		f.state = "inactive"
	}
	if f.again > 0 {
		f.again--
		f.state = "activating"
		return systemd.Properties{}, &systemd.JobError{Verb: "stop", Name: unit, Result: systemd.ResultCanceled}
	}
	f.registered = false
	return systemd.Properties{}, nil
}

// Kill is that of PID 1 for a unit.
func (f *fake) kill() {
	if f.stuck {
		return
	}
	f.left, f.ignores = false, false
	if f.state == "active" {
		f.state = "failed"
	}
}

type unitKiller struct{ *fake }

func (f unitKiller) Kill(_ context.Context, unit string, signal syscall.Signal) error {
	f.did("kill %s %d", unit, signal)
	f.kill()
	return nil
}

func (f *fake) WhyNoMachined(context.Context) string { return "machined is masked" }

func (f *fake) ResetFailed(context.Context, string) error {
	f.did("reset-failed")
	if f.resetErr == nil {
		f.state = "inactive"
	}
	return f.resetErr
}

func (f *fake) Reload(context.Context) error {
	f.did("reload")
	return nil
}

type fakeGroups struct{ *fake }

func (f fakeGroups) AwaitEmpty(ctx context.Context, _ ...string) error {
	if !f.left {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (f fakeGroups) Kill(groups ...string) error {
	f.did("kill %q", groups)
	f.kill()
	return nil
}

func (f fakeGroups) Processes(...string) []string {
	return []string{"1 (a)", "2 (b)", "3 (c)", "4 (d)", "5 (e)", "6 (f)"}
}

func (f *fake) forget(context.Context, string, string) (bool, error) {
	if f.forgetErr != nil {
		return false, f.forgetErr
	}
	was := f.registered
	f.registered = false
	return was, nil
}

func (f *fake) removal(root string, log *bytes.Buffer) *Removal {
	return &Removal{
		root: root, name: "kube1", unit: kube1, host: unitKiller{f}, groups: fakeGroups{f}, forget: f.forget,
		stopLimit: time.Millisecond, killLimit: time.Millisecond, leftLimit: time.Millisecond, log: journal.To(log),
	}
}

// root is a host with files; a name that ends in / is a folder.
func root(t *testing.T, names ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range append(names, paths.SystemdDir+"/") {
		path := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o755)
		} else if err == nil {
			err = os.WriteFile(path, []byte("NAME=kube1\nSCOPE="+kube1+"\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestRemove(t *testing.T) {
	t.Parallel()
	link := paths.SystemdDir + "/machines.target.wants/" + kube1
	tests := []struct {
		name  string
		have  fake
		files []string
		calls string
		says  []string // in the log
		again bool     // the same is said a second time
		gone  []string
		stay  []string
	}{
		{name: "nothing is there", have: fake{state: "inactive"}},
		{
			name: "healthy", have: fake{state: "active", enabled: true, registered: true},
			files: []string{
				paths.RunSlot + "/kube1", paths.RunSlot + "/kube2", paths.Restart + "/kube1.kubelet",
				paths.Restart + "/kube1.containerd.claimed", paths.Restart + "/kube2.kubelet",
			},
			calls: "reload, stop",
			says:  []string{kube1 + ": does not start at boot any more", kube1 + ": stopped"},
			gone:  []string{paths.RunSlot + "/kube1", paths.Restart + "/kube1.kubelet", paths.Restart + "/kube1.containerd.claimed"},
			stay:  []string{paths.RunSlot + "/kube2", paths.Restart + "/kube2.kubelet"},
		},
		{
			name: "a link that systemd leaves", have: fake{state: "inactive"}, files: []string{link},
			calls: "reload", gone: []string{link, filepath.Dir(link)},
		},
		{
			name: "a link beside a foreign one", have: fake{state: "inactive"}, files: []string{link, filepath.Dir(link) + "/systemd-nspawn@mine.service"},
			calls: "reload", gone: []string{link}, stay: []string{filepath.Dir(link) + "/systemd-nspawn@mine.service"},
		},
		{
			name: "does not heed a request", have: fake{state: "active", ignores: true},
			calls: "stop, kill " + kube1 + " 9, stop, reset-failed", says: []string{"machine kube1 has not stopped within 1ms, killing it"},
		},
		{
			name: "failed, with processes left", have: fake{state: "failed", left: true},
			calls: `kill ["" "/machine.slice/systemd-nspawn@kube1.service"], reset-failed`, says: []string{"1 (a), 2 (b), 3 (c), 4 (d), 5 (e), …"},
		},
		{
			name: "in another slice, with processes left", have: fake{state: "active", left: true, group: "/x.slice/y"},
			calls: `stop, kill ["/x.slice/y" "/machine.slice/systemd-nspawn@kube1.service"]`,
		},
		{
			name: "failures may not be forgotten", have: fake{state: "failed", resetErr: errors.New("access denied")},
			calls: "reset-failed", says: []string{"access denied, ignoring"},
		},
		{
			name: "started meanwhile", have: fake{state: "active", again: 2},
			calls: "stop, stop, stop",
		},
		{name: "registered still", have: fake{state: "inactive", registered: true}, says: []string{"kube1: unregistered"}},
		{name: "no machined", have: fake{state: "inactive", forgetErr: machined.ErrNone}},
		{
			name: "killed", have: fake{state: "inactive"}, gone: []string{unixExport + "kube1", nspawnRun + "propagate/kube1"},
			files: []string{unixExport + "kube1/", unixExport + "kube2/", nspawnRun + "propagate/kube1/"}, stay: []string{unixExport + "kube2"},
		},
		{
			name: "killed, with something bound into it", have: fake{state: "inactive"}, files: []string{nspawnRun + "propagate/kube1/x"},
			says: []string{"propagate/kube1 is not empty and stays"}, again: true,
		},
		{
			name: "machined's notes, while it answers", have: fake{state: "inactive"},
			files: []string{machinedRun + "kube1"}, stay: []string{machinedRun + "kube1"},
		},
		{
			name: "machined's notes, while it is away", have: fake{state: "inactive", forgetErr: machined.ErrNone},
			files: []string{machinedRun + "kube1", machinedRun + "unit:" + kube1, machinedRun + "other"},
			gone:  []string{machinedRun + "kube1", machinedRun + "unit:" + kube1}, stay: []string{machinedRun + "other"},
		},
		{
			name: "machined's notes, while it hangs", have: fake{state: "inactive", registrar: "active", forgetErr: errors.New("too late")},
			files: []string{machinedRun + "kube1"}, stay: []string{machinedRun + "kube1"},
		},
		{
			name: "machined is masked", have: fake{state: "active", forgetErr: errors.New("unit is masked")},
			calls: "stop", says: []string{"machine kube1 may be registered (machined is masked: unit is masked), ignoring"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root, log := root(t, tt.files...), &bytes.Buffer{}
			removal := tt.have.removal(root, log)
			if err := removal.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(tt.have.calls, ", "); got != tt.calls {
				t.Errorf("did %s, want %s", got, tt.calls)
			}
			for _, says := range tt.says {
				if !strings.Contains(log.String(), says) {
					t.Errorf("log %q does not say %q", log, says)
				}
			}
			for _, name := range tt.gone {
				if _, err := os.Lstat(root + name); err == nil {
					t.Errorf("%s is still there", name)
				}
			}
			for _, name := range tt.stay {
				if _, err := os.Lstat(root + name); err != nil {
					t.Error(err)
				}
			}
			if tt.have.resetErr != nil {
				return
			}
			tt.have.calls = nil
			log.Reset()
			if err := removal.Run(t.Context()); err != nil {
				t.Fatalf("a second time: %v", err)
			}
			if tt.have.calls != nil || tt.have.forgetErr == nil && !tt.again && log.Len() > 0 {
				t.Errorf("a second time: did %q, said %q", tt.have.calls, log)
			}
		})
	}
}

func TestRemoveFails(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		have  fake
		says  []string
		calls string
	}{
		{"disable fails", fake{state: "active", enabled: true, disableErr: errors.New("disable " + kube1 + ": read-only")}, []string{"read-only"}, ""},
		{
			"cannot be killed",
			fake{state: "active", stuck: true, left: true},
			[]string{"machine kube1", "1 (a), 2 (b)"},
			"stop, kill " + kube1 + " 9, stop",
		},
		{
			"dead, with processes that cannot be killed",
			fake{state: "failed", stuck: true, left: true},
			[]string{"machine kube1", "1 (a), 2 (b)"},
			`kill ["" "/machine.slice/systemd-nspawn@kube1.service"]`,
		},
		{
			"started again and again",
			fake{state: "active", again: 99},
			[]string{"machine kube1 is started again and again", "journalctl -u " + kube1},
			"stop, stop, stop, stop, stop",
		},
		{
			"registered by another unit",
			fake{state: "inactive", forgetErr: &machined.RegisteredError{Why: "machine kube1 is registered by x.scope"}},
			[]string{"registered by x.scope"},
			"",
		},
		{"started by hand", fake{state: "inactive", scope: "active"}, []string{"systemctl stop machine-kube1.scope"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			log := &bytes.Buffer{}
			tree := root(t, paths.RunSlot+"/kube1")
			err := tt.have.removal(tree, log).Run(t.Context())
			if err == nil {
				t.Fatal("Run() = nil, want an error")
			}
			for _, says := range tt.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("error %q does not say %q", err, says)
				}
			}
			if got := strings.Join(tt.have.calls, ", "); got != tt.calls {
				t.Errorf("did %s, want %s", got, tt.calls)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has more than a line", err)
			}
			if _, err := os.Stat(tree + paths.RunSlot + "/kube1"); err != nil {
				t.Error(err)
			}
		})
	}
}
