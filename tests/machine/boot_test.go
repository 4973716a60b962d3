//go:build host

package machine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/tests/host"
)

// stub is a stage that does what the file of its name in /tmp says, and else succeeds.
const stub = `[Unit]
%s
StartLimitIntervalSec=0
[Service]
Type=oneshot
TimeoutStartSec=6
ExecStart=/bin/sh -c 'test ! -e /tmp/%[2]s || . /tmp/%[2]s'
`

// attempts boots a host whose stages are stubs; target, boot and failed are the real ones.
func attempts(t *testing.T, release string) *host.Host {
	t.Helper()
	overlay := map[string]host.File{}
	for i, unit := range paths.StageUnits("kube1") {
		behind := ""
		if i > 0 {
			behind = "Requires=" + paths.AdmitUnit + "\nAfter=" + paths.AdmitUnit
		}
		overlay["/etc/systemd/system/"+unit] = host.File{Content: fmt.Sprintf(stub, behind, strings.TrimSuffix(unit, ".service"))}
	}
	return host.Boot(t, host.Options{Release: release, Overlay: overlay})
}

func does(t *testing.T, h *host.Host, stage, script string) {
	t.Helper()
	h.WriteFile(t, "/tmp/"+stage, host.File{Content: script + "\n"})
}

func TestBoot(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		h := attempts(t, release)
		status := func(want string) {
			t.Helper()
			h.Await(t, time.Minute, "systemctl show -P StatusText "+paths.BootUnit+" | grep -q '"+want+"'")
		}
		t.Run("success", func(t *testing.T) {
			h.MustRun(t, "systemctl start "+paths.BootUnit)
			h.Await(t, time.Minute, `test "$(for p in ActiveState Result ExecMainStatus; do systemctl show -P $p `+paths.BootUnit+`; done | xargs)" = "inactive success 0"`)
		})
		t.Run("failure, then success, over a daemon-reexec", func(t *testing.T) {
			does(t, h, "unbounded-kernel", "exit 1")
			h.MustRun(t, "systemctl start "+paths.BootUnit)
			status("attempt 1 failed: unbounded-kernel.service ended with 1; next one in [12][0-9]s")
			h.MustRun(t, "systemctl daemon-reexec; rm /tmp/unbounded-kernel")
			h.Await(t, time.Minute, `test "$(for p in ActiveState Result; do systemctl show -P $p `+paths.BootUnit+`; done | xargs)" = "inactive success"`)
		})
		t.Run("the lock is held; stopped while it waits", func(t *testing.T) {
			does(t, h, "unbounded-admit", "exit 75")
			h.MustRun(t, "systemctl start "+paths.BootUnit)
			status("unbounded-admit.service found the lock held")
			h.MustRun(t, "systemctl stop "+paths.BootUnit)
			if got := h.MustRun(t, "systemctl show -P ActiveState "+paths.BootUnit+"; systemctl show -P Result "+paths.BootUnit); strings.Join(strings.Fields(got), " ") != "inactive success" {
				t.Errorf("after a stop: %q", got)
			}
		})
		t.Run("stopped in the middle of an attempt", func(t *testing.T) {
			does(t, h, "unbounded-admit", "sleep 2")
			h.MustRun(t, "systemctl start "+paths.BootUnit)
			h.Await(t, time.Minute, "test $(systemctl show -P ActiveState "+paths.AdmitUnit+") = activating")
			h.MustRun(t, "systemctl stop "+paths.BootUnit+" "+paths.Target)
			if got := h.MustRun(t, "systemctl show -P ActiveState "+paths.BootUnit+"; systemctl show -P Result "+paths.BootUnit); strings.Join(strings.Fields(got), " ") != "inactive success" {
				t.Errorf("after a stop: %q", got)
			}
			h.Await(t, time.Minute, "! systemctl is-active --quiet "+paths.AdmitUnit)
		})
		t.Run("refused, while an old failure of a later stage shows", func(t *testing.T) {
			does(t, h, "unbounded-admit", "exit 0")
			does(t, h, "unbounded-kernel", "exit 78")
			h.Run(t, "systemctl start "+paths.Target)
			does(t, h, "unbounded-admit", "exit 1")
			h.MustRun(t, "systemctl start "+paths.BootUnit)
			status("unbounded-admit.service ended with 1")
			h.MustRun(t, "systemctl stop "+paths.BootUnit)
			does(t, h, "unbounded-admit", "exit 78")
			h.MustRun(t, "systemctl start "+paths.BootUnit)
			h.Await(t, time.Minute, `test "$(for p in ActiveState ExecMainStatus NRestarts; do systemctl show -P $p `+paths.BootUnit+`; done | xargs)" = "failed 78 0"`)
			line := h.MustRun(t, "journalctl -b -o cat -p err UNBOUNDED_STAGE=unbounded-boot | tail -n 1")
			if !strings.Contains(line, paths.AdmitUnit) {
				t.Errorf("%q does not name the stage that refused", line)
			}
		})
	})
}

func TestFailed(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		h := attempts(t, release)
		// note is the failure note after a start that must fail, once the real failed unit has ended.
		note := func(t *testing.T) string {
			t.Helper()
			if got := h.Run(t, "systemctl start "+paths.Target); got.Code == 0 {
				t.Fatal("the start succeeded, want a failure")
			}
			h.Await(t, time.Minute, "systemctl show -P ActiveState "+paths.FailedUnit+" | grep -qx inactive && ! systemctl list-jobs | grep -q "+paths.FailedUnit)
			return h.Run(t, "cat "+paths.LastFailure).Out
		}
		for _, tt := range []struct{ name, script, says, status string }{
			{"killed", "kill -KILL $$", "killed by signal 9", "137"},
			{"out of time", "trap 'exit 1' TERM; sleep 60 & wait", "TimeoutStartSec=", "1"},
			{"crashed", "exit 2", "status 2", "2"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				does(t, h, "unbounded-rootfs@kube1", tt.script)
				got := note(t)
				for _, want := range []string{tt.says, `"stage": "unbounded-rootfs"`, `"unit": "unbounded-rootfs@kube1.service"`, `"status": ` + tt.status + ",", `"invocationID": "`} {
					if !strings.Contains(got, want) {
						t.Errorf("note %s does not have %s", got, want)
					}
				}
				line := h.MustRun(t, "journalctl -b -o cat -p err UNBOUNDED_STAGE=unbounded-rootfs | tail -n 1")
				if !strings.Contains(line, tt.says) {
					t.Errorf("journal says %q, want %q", line, tt.says)
				}
			})
		}
		t.Run("not executable", func(t *testing.T) {
			h.MustRun(t, "mkdir -p /run/systemd/system/unbounded-rootfs@kube1.service.d; printf '[Service]\\nExecStart=\\nExecStart=/nowhere\\n' >/run/systemd/system/unbounded-rootfs@kube1.service.d/x.conf; systemctl daemon-reload")
			if got := note(t); !strings.Contains(got, "203") {
				t.Errorf("note %s does not have 203", got)
			}
			h.MustRun(t, "rm -r /run/systemd/system/unbounded-rootfs@kube1.service.d; systemctl daemon-reload")
		})
		t.Run("what a stage wrote in this attempt is kept", func(t *testing.T) {
			does(t, h, "unbounded-kernel", `printf '{"cause":"mine","time":"%s"}' $(date -u +%Y-%m-%dT%H:%M:%S.%NZ) >`+paths.LastFailure+"; exit 1")
			does(t, h, "unbounded-rootfs@kube1", "sleep 0.5; kill -KILL $$")
			if got := note(t); !strings.Contains(got, `"cause":"mine"`) {
				t.Errorf("note %s, want the stage's own", got)
			}
			h.MustRun(t, "rm /tmp/unbounded-kernel")
			does(t, h, "unbounded-rootfs@kube1", "kill -KILL $$")
			if got := note(t); !strings.Contains(got, "signal 9") {
				t.Errorf("note %s, want that of the later attempt", got)
			}
		})
		t.Run("an attempt that fails while an earlier one is told of", func(t *testing.T) {
			const slow = "/run/systemd/system/" + paths.FailedUnit + ".d"
			h.MustRun(t, "rm -f "+paths.LastFailure+"; mkdir -p "+slow+"; printf '[Service]\\nSystemCallFilter=\\nExecStart=\\nExecStart=/usr/bin/strace -f -o /dev/null "+
				"-e trace=renameat,renameat2 -e inject=renameat,renameat2:delay_exit=3000000 "+paths.DefaultRoot+"/current/unbounded-failed\\n' >"+slow+"/x.conf; systemctl daemon-reload")
			does(t, h, "unbounded-rootfs@kube1", "kill -KILL $$")
			if got := h.Run(t, "systemctl start "+paths.Target); got.Code == 0 {
				t.Fatal("the start succeeded, want a failure")
			}
			h.Await(t, time.Minute, "grep -q unbounded-rootfs "+paths.LastFailure)
			does(t, h, "unbounded-rootfs@kube1", "exit 0")
			does(t, h, "unbounded-kernel", "kill -KILL $$")
			if got := note(t); !strings.Contains(got, `"stage": "unbounded-kernel"`) {
				t.Errorf("note %s, want that of the later attempt", got)
			}
			h.MustRun(t, "rm -r "+slow+" /tmp/unbounded-kernel; systemctl daemon-reload")
		})
		t.Run("silent for what was stopped", func(t *testing.T) {
			h.MustRun(t, "rm -f "+paths.LastFailure)
			does(t, h, "unbounded-rootfs@kube1", "trap 'exit 1' TERM; sleep 60 & wait")
			const is = "test $(systemctl show -P ActiveState unbounded-rootfs@kube1.service) "
			h.MustRun(t, "systemctl start --no-block "+paths.Target)
			h.Await(t, time.Minute, is+"= activating")
			h.MustRun(t, "systemctl stop unbounded-rootfs@kube1.service")
			h.Await(t, time.Minute, "! systemctl list-jobs | grep -q unbounded-")
			h.MustRun(t, "systemctl start "+paths.FailedUnit+"; test ! -e "+paths.LastFailure)
		})
		t.Run("silent for reset", func(t *testing.T) {
			h.MustRun(t, "rm -f "+paths.LastFailure)
			r := record.New(record.Identity{MachineName: "m1"})
			r.Phase = record.Resetting
			data, err := r.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			h.WriteFile(t, paths.Record, host.File{Content: string(data)})
			does(t, h, "unbounded-rootfs@kube1", "kill -KILL $$")
			if got := note(t); got != "" {
				t.Errorf("note %s, want none", got)
			}
		})
	})
}
