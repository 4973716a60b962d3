package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/journal"
	"unbounded/internal/lock"
	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

// fakeUnits is a service manager whose units do what they are told, and onStop besides.
type fakeUnits struct {
	active  map[string]string
	enabled bool
	broken  error
	denied  error // of having failures forgotten
	calls   []string
	onStop  func(unit string)
}

func (f *fakeUnits) Disable(_ context.Context, unit string) (bool, error) {
	was := f.enabled
	f.enabled = false
	f.calls = append(f.calls, "disable "+unit)
	return was, f.broken
}

func (f *fakeUnits) ListUnits(context.Context, ...string) (map[string]string, error) {
	return f.active, f.broken
}

func (f *fakeUnits) Stop(_ context.Context, unit string) (systemd.Properties, error) {
	f.calls = append(f.calls, "stop "+unit)
	f.active[unit] = "inactive"
	if f.onStop != nil {
		f.onStop(unit)
	}
	return systemd.Properties{ActiveState: "inactive"}, nil
}

func (f *fakeUnits) ResetFailed(context.Context, string) error { return f.denied }

func (f *fakeUnits) Reload(context.Context) error {
	f.calls = append(f.calls, "reload")
	return f.broken
}

func newEnv(t *testing.T) (*stage.Env, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	root := t.TempDir()
	if err := os.MkdirAll(paths.At(root, paths.SystemdDir), 0o755); err != nil {
		t.Fatal(err)
	}
	return &stage.Env{Root: root, Log: journal.To(&out)}, &out
}

func create(t *testing.T, root string, phase record.Phase) record.Record {
	t.Helper()
	r := record.New(record.Identity{MachineName: "m1", KubernetesVersion: "1.37.2", OCIImage: "r.test/n:1", APIServer: "https://a.test"})
	r.Phase = phase
	if err := record.Open(root).Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return r
}

// The unit that tries again goes first, then the target, then stages from the last, so that none of them starts
// because another has ended.
func TestOrderOfStopping(t *testing.T) {
	loaded := map[string]string{
		paths.AdmitUnit: "inactive", paths.RootfsUnit("kube1"): "activating", paths.JoinUnit("kube1"): "inactive",
		paths.BootUnit: "active", paths.BootCompleteUnit: "activating", paths.AutostartTarget: "active",
		paths.Target: "inactive", paths.ResetTarget: "inactive", paths.ResetBeginUnit: "activating",
		paths.FailedUnit: "activating", paths.DaemonUnit: "active", paths.RecoveryUnit: "inactive",
		"unbounded-repave-rootfs@kube2.service": "activating",
	}
	want := []string{
		paths.BootCompleteUnit, paths.BootUnit, paths.Target, "unbounded-repave-rootfs@kube2.service",
		paths.JoinUnit("kube1"), paths.RootfsUnit("kube1"), paths.AdmitUnit,
	}
	if diff := cmp.Diff(want, ofBootstrap(loaded)); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// Some systems deny it by policy to have failures forgotten.
func TestBeginDenied(t *testing.T) {
	env, out := newEnv(t)
	create(t, env.Root, record.Installing)
	host := &fakeUnits{active: map[string]string{paths.BootUnit: "failed"}, denied: errors.New("SELinux policy denies access")}
	if err := start(t.Context(), env, host, "/opt/x", time.Second); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, "policy denies access, ignoring") {
		t.Errorf("begin says %q", got)
	}
}

// Nothing can be disabled where a system extension starts the unit of the boot: it is held back, once.
func TestBeginOnAnExtension(t *testing.T) {
	const prefix = "/usr/lib/unbounded"
	env, out := newEnv(t)
	create(t, env.Root, record.Complete)
	release := paths.At(env.Root, "/usr/lib/extension-release.d/extension-release.unbounded")
	if err := durable.Replace(release, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	host := &fakeUnits{active: map[string]string{}}
	for range 2 {
		if err := start(t.Context(), env, host, prefix, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(paths.At(env.Root, paths.HeldAtBoot))
	if err != nil || !strings.Contains(string(text), "ConditionPathExists=!"+paths.HeldAtBoot+"\n") {
		t.Errorf("the drop-in = %q, %v", text, err)
	}
	if got := strings.Count(strings.Join(host.calls, " "), "reload"); got != 1 {
		t.Errorf("%d reloads, want 1", got)
	}
	if got := strings.Count(out.String(), paths.HeldAtBoot); got != 1 {
		t.Errorf("the drop-in is told %d times, want once: %s", got, out)
	}
}

func TestBegin(t *testing.T) {
	env, _ := newEnv(t)
	was := create(t, env.Root, record.Complete)
	if _, err := durable.Mark(paths.At(env.Root, paths.Complete)); err != nil {
		t.Fatal(err)
	}
	host := &fakeUnits{enabled: true, active: map[string]string{paths.BootUnit: "active", paths.Target: "activating"}}
	for range 2 { // again: nothing is different
		if err := start(t.Context(), env, host, "/opt/x", time.Second); err != nil {
			t.Fatal(err)
		}
		r, err := record.Open(env.Root).Load()
		if err != nil || r.Phase != record.Resetting || r.InstallID != was.InstallID {
			t.Errorf("record = %+v, %v, want that installation, resetting", r, err)
		}
		if _, err := os.Lstat(paths.At(env.Root, paths.Complete)); !os.IsNotExist(err) {
			t.Errorf("the marker: %v, want it gone", err)
		}
	}
	if want := []string{"disable " + paths.BootUnit, "stop " + paths.BootUnit, "stop " + paths.Target}; !slices.Equal(host.calls[:3], want) {
		t.Errorf("calls = %q, want %q first", host.calls, want)
	}
}

// A stage holds the lock until it is stopped; one that somebody starts meanwhile is stopped too.
func TestBeginStopsWhoHoldsTheLock(t *testing.T) {
	env, _ := newEnv(t)
	create(t, env.Root, record.Installing)
	held, err := lock.Take(env.Root, lock.Shared)
	if err != nil {
		t.Fatal(err)
	}
	host := &fakeUnits{active: map[string]string{paths.KernelUnit: "activating"}}
	stops := 0
	host.onStop = func(string) {
		stops++
		if stops == 2 { // the first time another one comes at once
			if err := held.Release(); err != nil {
				t.Error(err)
			}
		}
	}
	if err := start(t.Context(), env, host, "/opt/x", time.Minute); err != nil {
		t.Fatal(err)
	}
	if stops != 2 {
		t.Errorf("stopped %d times, want until the lock was free", stops)
	}
}

func TestBeginLeavesTheHostAsItIs(t *testing.T) {
	for _, test := range []struct {
		name   string
		broken error
		held   bool
		want   exit.Status
	}{
		{"systemd does not answer", errors.New("no bus"), false, exit.Failed},
		{"somebody keeps the lock", nil, true, exit.Held},
	} {
		t.Run(test.name, func(t *testing.T) {
			env, _ := newEnv(t)
			create(t, env.Root, record.Complete)
			if test.held {
				held, err := lock.Take(env.Root, lock.Shared)
				if err != nil {
					t.Fatal(err)
				}
				defer held.Release()
			}
			err := start(t.Context(), env, &fakeUnits{broken: test.broken, active: map[string]string{}}, "/opt/x", 50*time.Millisecond)
			if got := exit.Of(err); got != test.want {
				t.Errorf("start() = %v, status %d, want %d", err, got, test.want)
			}
			if r, err := record.Open(env.Root).Load(); err != nil || r.Phase != record.Complete {
				t.Errorf("record = %+v, %v, want it as it was", r, err)
			}
		})
	}
}

func TestBeginWithoutARecord(t *testing.T) {
	env, out := newEnv(t)
	if err := start(t.Context(), env, &fakeUnits{active: map[string]string{}}, "/opt/x", time.Second); err != nil {
		t.Fatal(err)
	}
	if r, err := record.Open(env.Root).Load(); err != nil || r.Phase != record.Resetting {
		t.Errorf("record = %+v, %v, want a synthetic one", r, err)
	}
	if !strings.Contains(out.String(), "no install record") {
		t.Errorf("said %q, want why the record is synthetic", out)
	}
}

type fakeSlots struct {
	runs bool
	err  error
}

func (f fakeSlots) SlotRuns(context.Context, string) (bool, error)   { return f.runs, f.err }
func (f fakeSlots) Registered(context.Context, string) (bool, error) { return false, nil }

func TestRelease(t *testing.T) {
	for _, test := range []struct {
		name  string
		left  string
		slots fakeSlots
		says  string
	}{
		{name: "clean"},
		{name: "a file of somebody else", left: paths.State + "/notes.txt"},
		{name: "the note of the network", left: paths.Before + "/network.json"},
		{name: "a tree", left: paths.Tree("kube2") + "/x", says: paths.Tree("kube2")},
		{name: "a before-image", left: paths.Before + "/kernel.json", says: "kernel.json"},
		{name: "a unit that is held back", left: paths.ConditionDropIn("docker.service"), says: "docker.service"},
		{name: "a machine", slots: fakeSlots{runs: true}, says: "kube1"},
		{name: "nobody knows", slots: fakeSlots{err: errors.New("no bus")}, says: "cannot tell"},
	} {
		t.Run(test.name, func(t *testing.T) {
			env, _ := newEnv(t)
			create(t, env.Root, record.Resetting)
			if test.left != "" {
				if err := durable.Replace(paths.At(env.Root, test.left), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := giveBack(t.Context(), env, test.slots)
			_, loadErr := record.Open(env.Root).Load()
			if test.says == "" {
				if err != nil || !errors.Is(loadErr, record.ErrNone) {
					t.Errorf("giveBack() = %v, record %v, want it gone", err, loadErr)
				}
				_, err := os.Lstat(paths.At(env.Root, "/var/lib/unbounded"))
				if (err == nil) != (test.name == "a file of somebody else") {
					t.Errorf("/var/lib/unbounded: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("giveBack() = %v, want %q named", err, test.says)
			}
			if loadErr != nil {
				t.Errorf("record: %v, want the host still owned", loadErr)
			}
		})
	}
}
