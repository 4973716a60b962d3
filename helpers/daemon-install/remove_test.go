package main

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/durable"
	"unbounded/internal/journal"
	"unbounded/internal/legacy"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

// running is a manager all of whose units run until they are stopped.
type running struct{ stopped []string }

func (r *running) Properties(_ context.Context, unit string) (systemd.Properties, error) {
	if slices.Contains(r.stopped, unit) {
		return systemd.Properties{LoadState: "not-found", ActiveState: "inactive"}, nil
	}
	return systemd.Properties{LoadState: "loaded", ActiveState: "active"}, nil
}

func (r *running) Stop(ctx context.Context, unit string) (systemd.Properties, error) {
	r.stopped = append(r.stopped, unit)
	return r.Properties(ctx, unit)
}

func (r *running) Disable(context.Context, string) (bool, error) { return false, nil }
func (r *running) ResetFailed(context.Context, string) error     { return nil }
func (r *running) Reload(context.Context) error                  { return nil }

func lay(t *testing.T, root string, files ...string) {
	t.Helper()
	for _, path := range files {
		if err := durable.Replace(paths.At(root, path), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func there(root string, files ...string) (found []string) {
	for _, path := range files {
		if _, err := os.Lstat(paths.At(root, path)); err == nil {
			found = append(found, path)
		}
	}
	return found
}

func TestRemove(t *testing.T) {
	var out bytes.Buffer
	env := &stage.Env{Root: t.TempDir(), Log: journal.To(&out)}
	ours := []string{
		paths.SystemdDir + "/" + paths.DaemonUnit, paths.SystemdDir + "/" + paths.RecoveryUnit,
		paths.SystemdDir + "/" + legacy.BootstrapUnit, legacy.RecoveryScripts()[0], legacy.RecoveryScripts()[1],
	}
	stays := []string{
		paths.Config, paths.ConfigDir + "/agent-upgrade-signal", paths.ConfigDir + "/daemon-controller/client.key",
		paths.SystemdDir + "/operator.service", paths.LegacyRoot + "/bin/kubectl",
	}
	lay(t, env.Root, append(ours, stays...)...)
	manager := &running{}
	if err := retire(t.Context(), env, manager); err != nil {
		t.Fatal(err)
	}
	if want := []string{legacy.BootstrapUnit, paths.RecoveryUnit, paths.DaemonUnit}; !slices.Equal(manager.stopped, want) {
		t.Errorf("stopped %q, want %q: what starts the daemon comes first", manager.stopped, want)
	}
	if found := there(env.Root, ours...); found != nil {
		t.Errorf("%q are left", found)
	}
	if diff := cmp.Diff(stays, there(env.Root, stays...)); diff != "" {
		t.Errorf("what stays (-want +got):\n%s", diff)
	}
	out.Reset()
	if err := retire(t.Context(), env, manager); err != nil || out.Len() > 0 {
		t.Errorf("the second run: %v, said %q", err, &out)
	}
}

func TestForget(t *testing.T) {
	var out bytes.Buffer
	env := &stage.Env{Root: t.TempDir(), Log: journal.To(&out)}
	credentials := []string{paths.ConfigDir + "/agent-upgrade-signal", paths.ConfigDir + "/daemon-controller/client.key"}
	lay(t, env.Root, append(credentials, paths.Config)...)
	if err := forget(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	if found := there(env.Root, append(credentials, paths.ConfigDir+"/daemon-controller", paths.Config)...); !slices.Equal(found, []string{paths.Config}) {
		t.Errorf("left: %q, want the configuration only", found)
	}
	if strings.Count(out.String(), "removed") != 2 {
		t.Errorf("said %q", &out)
	}
	out.Reset()
	if err := forget(t.Context(), env); err != nil || out.Len() > 0 {
		t.Errorf("the second run: %v, said %q", err, &out)
	}
}
