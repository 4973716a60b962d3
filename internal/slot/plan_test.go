package slot

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/exit"
	"unbounded/internal/systemd"
)

func TestPlanHost(t *testing.T) {
	t.Parallel()
	// running is a host on which nothing is to be done.
	running := func(change func(*host)) host {
		h := host{
			slot: "kube1", other: "kube2", unitFile: "enabled", targetFile: "enabled",
			unit: systemd.Properties{LoadState: "loaded", ActiveState: "active", SubState: "running"},
		}
		change(&h)
		return h
	}
	state := func(active, sub string) func(*host) {
		return func(h *host) { h.unit.ActiveState, h.unit.SubState = active, sub }
	}
	tests := []struct {
		name string
		have host
		want []step
	}{
		{"runs and stays", running(func(*host) {}), nil},
		{"runs, not enabled", running(func(h *host) { h.unitFile = "disabled" }), []step{enable, reload}},
		{"runs, enabled for this boot", running(func(h *host) { h.unitFile = "enabled-runtime" }), []step{enable, reload}},
		{"runs, target disabled by the owner", running(func(h *host) { h.targetFile = "disabled" }), []step{enableTarget, reload}},
		{"runs, target static", running(func(h *host) { h.targetFile = "static" }), nil},
		{"runs, drop-in changed", running(func(h *host) { h.unit.NeedDaemonReload = true }), []step{reload}},
		{"runs, drop-in in a new folder", running(func(h *host) { h.dropIn = true }), []step{reload}},
		{"runs, drop-in was read", running(func(h *host) {
			h.dropIn, h.unit.DropInPaths = true, []string{"/etc/systemd/system/systemd-nspawn@kube1.service.d/override.conf"}
		}), nil},
		{"runs, machined masked meanwhile", running(func(h *host) { h.noMachined = true }), nil},
		{"reloads", running(state("reloading", "reload")), nil},
		{"fresh", running(func(h *host) {
			state("inactive", "dead")(h)
			h.unitFile = "disabled"
		}), []step{enable, reload, clean, start}},
		{"stopped", running(state("inactive", "dead")), []step{clean, start}},
		{"failed", running(state("failed", "failed")), []step{resetFailed, clean, start}},
		{"starting, at boot", running(state("activating", "start")), []step{start}},
		{"stopping", running(state("deactivating", "stop-sigterm")), []step{start}},
		{"queued", running(func(h *host) {
			state("inactive", "dead")(h)
			h.unit.Job = 7
		}), []step{start}},
		{"waits for an automatic restart", running(state("activating", "auto-restart")), []step{stop, clean, start}},
		{"its automatic restart is queued", running(state("activating", "auto-restart-queued")), []step{stop, clean, start}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := planHost(tt.have)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPlanHostRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		have   host
		status exit.Status
		says   string
	}{
		{"other slot runs", host{otherRuns: true, otherStable: true}, exit.Refused, "systemctl stop systemd-nspawn@kube2.service"},
		{"other slot is stopping", host{otherRuns: true}, exit.Failed, "kube2 has not stopped"},
		{"masked", host{unit: systemd.Properties{LoadState: "masked"}}, exit.Refused, "systemctl unmask systemd-nspawn@kube1.service"},
		{"no template", host{unit: systemd.Properties{LoadState: "not-found"}}, exit.Failed, "systemd-container"},
		{"bad drop-in", host{unit: systemd.Properties{LoadState: "bad-setting"}}, exit.Failed, "bad-setting"},
		{"machined masked", host{unit: systemd.Properties{LoadState: "loaded", ActiveState: "inactive"}, noMachined: true}, exit.Refused, "unmask systemd-machined.service"},
		{"target masked", host{unit: systemd.Properties{LoadState: "loaded"}, targetFile: "masked"}, exit.Refused, "unmask machines.target"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.have.slot, tt.have.other = "kube1", "kube2"
			steps, err := planHost(tt.have)
			if err == nil || steps != nil {
				t.Fatalf("planHost() = %v, %v, want an error and no step", steps, err)
			}
			if got := exit.Of(err); got != tt.status {
				t.Errorf("status of %q = %d, want %d", err, got, tt.status)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %q does not name %q", err, tt.says)
			}
		})
	}
}
