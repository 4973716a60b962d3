//go:build host

// Package boot tests what a host does by itself when it boots: where its configuration comes from, how it tries again, and
// when its boot is complete.
package boot

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

func releases(t *testing.T, f func(t *testing.T, release string)) {
	t.Helper()
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) { f(t, release) })
	}
}

// stub is a stage that does what the file of its name in /etc/stub says, and else succeeds.
const stub = `[Unit]
%s
StartLimitIntervalSec=0
[Service]
Type=oneshot
TimeoutStartSec=30
ExecStart=/bin/sh -c 'test ! -e /etc/stub/%[2]s || . /etc/stub/%[2]s'
`

// probe is who wants to know whether the boot was complete, as systemd-bless-boot does.
const probe = `[Unit]
DefaultDependencies=no
Requires=boot-complete.target
After=boot-complete.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
`

const (
	enabled = paths.MultiUserWants + "/" + paths.BootUnit
	mark    = "mkdir -p " + paths.State + "; touch " + paths.Complete
)

// bootstrapping is a host whose stages are stubs, one behind the other, that do as they are told. Its boot's unit is the
// real one, enabled, and quick to start again after a crash.
func bootstrapping(does map[string]string) map[string]host.File {
	overlay := map[string]host.File{
		enabled: {Link: "/etc/systemd/system/" + paths.BootUnit},
		"/etc/systemd/system/" + paths.BootUnit + ".d/quick.conf": {Content: "[Service]\nRestartSec=1s\n"},
	}
	stages := paths.StageUnits("kube1")
	for i, unit := range stages {
		behind := ""
		if i > 0 {
			behind = "Requires=" + stages[i-1] + "\nAfter=" + stages[i-1]
		}
		overlay["/etc/systemd/system/"+unit] = host.File{Content: fmt.Sprintf(stub, behind, strings.TrimSuffix(unit, ".service"))}
	}
	for stage, script := range does {
		overlay["/etc/stub/"+stage] = host.File{Content: script + "\n"}
	}
	return overlay
}

// withProbe has boot-complete.target wait for us, and somebody wait for that.
func withProbe(overlay map[string]host.File) map[string]host.File {
	overlay["/etc/systemd/system/boot-complete.target.requires/"+paths.BootCompleteUnit] = host.File{Link: "/etc/systemd/system/" + paths.BootCompleteUnit}
	overlay["/etc/systemd/system/probe.service"] = host.File{Content: probe}
	overlay["/etc/systemd/system/basic.target.wants/probe.service"] = host.File{Link: "/etc/systemd/system/probe.service"}
	return overlay
}

// state is some properties of a unit, with spaces between.
func state(unit string, properties ...string) string {
	var script strings.Builder
	for _, p := range properties {
		fmt.Fprintf(&script, "systemctl show -P %s %s; ", p, unit)
	}
	return "$({ " + script.String() + "} | xargs)"
}

// shows waits until the unit has these properties.
func shows(t *testing.T, h *host.Host, unit, want string, properties ...string) {
	t.Helper()
	h.Await(t, time.Minute, `got="`+state(unit, properties...)+`"; echo "$got"; test "$got" = "`+want+`"`)
}

// The units are as this systemd wants them: none of their lines is unknown, or of no effect, to it.
func TestVerify(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		h := host.Boot(t, host.Options{Release: release})
		got := h.Run(t, "systemd-analyze verify --man=no --recursive-errors=one /etc/systemd/system/unbounded-*.service /etc/systemd/system/unbounded-*.target")
		for line := range strings.Lines(got.Out + got.Err) {
			if got.Code != 0 || strings.Contains(line, "unbounded") {
				t.Errorf("systemd-analyze verify: exit %d: %s", got.Code, line)
			}
		}
	})
}

const attempt1 = "systemctl status " + paths.BootUnit + " | grep 'attempt 1 failed: unbounded-kernel.service ended with 1; next one in [12][0-9]s'"

// The boot is over while the bootstrap fails. A crash of the helper, and a reboot, begin again with the first attempt, until
// it has succeeded: then nothing of ours runs in a boot.
func TestUnattended(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		h := host.Boot(t, host.Options{Release: release, Overlay: bootstrapping(map[string]string{
			"unbounded-kernel": "exit 1", "unbounded-complete": mark,
		})})
		h.Await(t, time.Minute, attempt1)
		h.MustRun(t, "systemctl kill -s KILL --kill-whom=main "+paths.BootUnit)
		shows(t, h, paths.BootUnit, "active 1", "ActiveState", "NRestarts")
		h.Await(t, time.Minute, attempt1)
		h.Reboot(t)
		h.Await(t, time.Minute, attempt1)
		shows(t, h, paths.BootUnit, "active 0", "ActiveState", "NRestarts")

		h.MustRun(t, "rm /etc/stub/unbounded-kernel; systemctl kill -s KILL --kill-whom=main "+paths.BootUnit)
		shows(t, h, paths.BootUnit, "inactive success", "ActiveState", "Result")
		h.MustRun(t, "test -e "+paths.Complete)
		h.Reboot(t)
		healthy(t, h)
	})
}

// healthy holds a boot to what the boot of a complete host is: one unmet condition, and no process of ours.
func healthy(t *testing.T, h *host.Host) {
	t.Helper()
	// ExecMainStartTimestampMonotonic is when a process of the unit was started last.
	const units = "systemctl list-units --all --plain --no-legend 'unbounded-*.service' | cut -d' ' -f1"
	for _, unit := range strings.Fields(h.MustRun(t, units)) {
		if got := strings.TrimSpace(h.MustRun(t, `echo "`+state(unit, "ActiveState", "ConditionResult", "ExecMainStartTimestampMonotonic")+`"`)); got != "inactive no 0" {
			t.Errorf("%s in a healthy boot: %s, want it skipped", unit, got)
		}
	}
	if got := h.Journal(t, paths.BootUnit); strings.Count(got, "\n") != 1 || !strings.Contains(got, "unmet condition check") {
		t.Errorf("a healthy boot says %q, want one unmet condition", got)
	}
	if got := h.MustRun(t, "journalctl -b -o cat UNBOUNDED_STAGE=unbounded-boot"); got != "" {
		t.Errorf("a healthy boot says %q", got)
	}
}

// The boot is complete when the host is a node, neither before nor by a crash of who makes it one, and the rest of the boot does
// not wait for it.
func TestBootComplete(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		h := host.Boot(t, host.Options{Release: release, NoWait: true, Overlay: withProbe(bootstrapping(map[string]string{
			"unbounded-kernel": "exit 1", "unbounded-complete": mark,
		}))})
		waits := func() {
			t.Helper()
			h.Await(t, time.Minute, "systemctl is-active multi-user.target && "+attempt1)
			shows(t, h, paths.BootCompleteUnit, "activating waiting for "+paths.BootUnit, "ActiveState", "StatusText")
			if got := h.Run(t, "systemctl is-active boot-complete.target probe.service").Out; got != "inactive\ninactive\n" {
				t.Errorf("boot-complete.target and who waits for it: %q, want them inactive", got)
			}
		}
		waits()
		h.MustRun(t, "systemctl kill -s KILL --kill-whom=main "+paths.BootUnit)
		shows(t, h, paths.BootUnit, "active 1", "ActiveState", "NRestarts")
		waits()
		h.MustRun(t, "systemctl daemon-reexec && systemctl restart dbus.service "+paths.BootUnit)
		waits()
		h.MustRun(t, "rm /etc/stub/unbounded-kernel; systemctl kill -s KILL --kill-whom=main "+paths.BootUnit)
		shows(t, h, "probe.service", "active success", "ActiveState", "Result")
		shows(t, h, "boot-complete.target", "active", "ActiveState")
		h.WaitReady(t)

		h.Reboot(t)
		shows(t, h, "probe.service", "active success", "ActiveState", "Result")
		healthy(t, h)
	})
}

// A refusal is final, and no boot is complete with it; a reset leaves nothing behind that would wait.
func TestRefusedThenReset(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		h := host.Boot(t, host.Options{Release: release, Overlay: withProbe(bootstrapping(map[string]string{"unbounded-admit": "exit 78"}))})
		shows(t, h, paths.BootUnit, "failed 78 0", "ActiveState", "ExecMainStatus", "NRestarts")
		shows(t, h, paths.BootCompleteUnit, "failed 78", "ActiveState", "ExecMainStatus")
		if got := h.Run(t, "systemctl is-active boot-complete.target probe.service").Out; got != "inactive\ninactive\n" {
			t.Errorf("boot-complete.target and who waits for it: %q, want them inactive", got)
		}
		line := h.MustRun(t, "journalctl -b -o cat -p err -u "+paths.BootCompleteUnit+" UNBOUNDED_STAGE=unbounded-boot | tail -n 1")
		if !strings.Contains(line, paths.BootUnit+" was refused") {
			t.Errorf("the journal says %q", line)
		}

		h.MustRun(t, "echo 'exit 1' > /etc/stub/unbounded-admit; systemctl restart "+paths.BootUnit)
		h.MustRun(t, "systemctl start --no-block boot-complete.target")
		shows(t, h, paths.BootCompleteUnit, "activating", "ActiveState")
		h.MustRun(t, "systemctl start "+paths.ResetTarget)
		shows(t, h, paths.BootCompleteUnit, "inactive", "ActiveState")
		shows(t, h, paths.BootUnit, "inactive", "ActiveState")
		if got := h.Run(t, "systemctl is-enabled "+paths.BootUnit).Out; got != "disabled\n" {
			t.Errorf("%s is %s after a reset", paths.BootUnit, got)
		}

		h.Reboot(t)
		shows(t, h, "probe.service", "active success", "ActiveState", "Result")
		if got := h.Journal(t, paths.BootCompleteUnit); !strings.Contains(got, "was not started in this boot") {
			t.Errorf("after a reset: %s", got)
		}
	})
}
