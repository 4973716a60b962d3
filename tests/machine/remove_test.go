//go:build host

package machine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

const (
	removeUnit   = "t-remove.service"
	settingsUnit = "t-settings.service"
)

// TestRemove takes machines off hosts by the reset stages of machines and their settings, alone.
func TestRemove(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		h := host.Boot(t, host.Options{
			Release: release, Args: bindTree(t),
			Overlay: map[string]host.File{
				paths.Config:                             {Content: configuration(t), Mode: 0o600},
				"/etc/systemd/system/t-machine@.service": {Content: alone(t, "unbounded-machine@.service")},
				"/etc/systemd/system/" + removeUnit:      {Content: alone(t, "unbounded-reset-machines.service")},
				"/etc/systemd/system/" + settingsUnit:    {Content: alone(t, "unbounded-reset-nspawn.service")},
			},
		})
		h.MustRun(t, "systemctl disable --quiet machines.target")
		folders := h.MustRun(t, "ls -d /etc/systemd/system/*.wants /etc/systemd/nspawn /run/bpffs 2>/dev/null || true")
		enabled := h.MustRun(t, "systemctl list-unit-files --state=enabled --no-legend")
		h.MustRun(t, "systemctl start "+paths.AdmitUnit+"; mkdir -p "+paths.Before+"; touch "+paths.Before+"/node-made-nspawn-folder")
		plant(t, h)

		r := &removal{t: t, h: h}
		t.Run("healthy", func(t *testing.T) {
			r.up(t)
			r.removes(t)
		})
		t.Run("second run", func(t *testing.T) {
			before := h.MustRun(t, hash)
			said := r.start(t, removeUnit, true)
			if after := h.MustRun(t, hash); after != before {
				t.Error("a second run wrote something")
			}
			if strings.Contains(said, ": ") {
				t.Errorf("a second run said %s", said)
			}
		})
		t.Run("machined is masked", func(t *testing.T) {
			r.up(t)
			h.MustRun(t, "systemctl mask --now systemd-machined.service")
			r.removes(t, "is masked", "ignoring")
			h.MustRun(t, "systemctl unmask systemd-machined.service")
		})
		t.Run("machined fails", func(t *testing.T) {
			r.up(t)
			h.MustRun(t, "systemctl stop systemd-machined.service; mkdir -p /run/systemd/system/systemd-machined.service.d; printf '[Service]\\nExecStart=\\nExecStart=/bin/false\\nRestart=no\\n' >/run/systemd/system/systemd-machined.service.d/x.conf; systemctl daemon-reload")
			r.removes(t, "systemd-machined.service has failed", "ignoring")
			h.MustRun(t, "rm -r /run/systemd/system/systemd-machined.service.d; systemctl daemon-reload; systemctl reset-failed systemd-machined.service")
		})
		t.Run("machined thinks that it runs", func(t *testing.T) {
			r.up(t)
			h.MustRun(t, "systemctl mask --now systemd-machined.service; systemctl stop systemd-nspawn@kube1.service; systemctl unmask systemd-machined.service")
			r.removes(t)
			if got := h.Run(t, "machinectl show kube1"); got.Code == 0 {
				t.Errorf("registered: %s", got.Out)
			}
		})
		t.Run("no bus", func(t *testing.T) {
			r.up(t)
			h.MustRun(t, "systemctl stop dbus.socket dbus.service 2>/dev/null || true")
			r.phase(t, "resetting")
			r.start(t, removeUnit, true, "ignoring")
			h.MustRun(t, "systemctl start dbus.socket; systemctl start systemd-machined.service systemd-logind.service || true")
			r.gone(t)
		})
		t.Run("killed nspawn that waits for its restart", func(t *testing.T) {
			r.up(t)
			h.MustRun(t, "kill -KILL $(systemctl show -P MainPID systemd-nspawn@kube1)")
			h.Await(t, time.Minute, "test $(systemctl show -P SubState systemd-nspawn@kube1) = auto-restart")
			r.removes(t)
		})
		t.Run("does not heed SIGTERM", func(t *testing.T) {
			r.up(t)
			h.MustRun(t, "echo 1 >/sys/fs/cgroup/machine.slice/systemd-nspawn@kube1.service/payload/cgroup.freeze")
			r.removes(t, "machine kube1 has not stopped within 20s, killing it")
		})
		t.Run("processes left by a unit that has failed", func(t *testing.T) {
			const group = "/sys/fs/cgroup/machine.slice/systemd-nspawn@kube1.service/payload/system.slice"
			h.MustRun(t, "mkdir -p "+group+"; sleep 1000 >/dev/null 2>&1 & echo $! >"+group+"/cgroup.procs; echo $! >/run/left")
			r.phase(t, "resetting")
			r.start(t, removeUnit, true, "(sleep)")
			h.MustRun(t, "! kill -0 $(cat /run/left) 2>/dev/null && rmdir -p "+group+" 2>/dev/null || test ! -e "+group)
		})
		t.Run("started by hand", func(t *testing.T) {
			h.MustRun(t, "systemd-run -q --unit machine-kube1.scope --scope sleep 1000 >/dev/null 2>&1 & sleep 1")
			r.start(t, removeUnit, false, "systemctl stop machine-kube1.scope")
			h.MustRun(t, "systemctl stop machine-kube1.scope")
		})
		t.Run("cannot be disabled", func(t *testing.T) {
			r.up(t)
			h.MustRun(t, "mount --bind /etc/systemd/system /etc/systemd/system && mount -o remount,bind,ro /etc/systemd/system")
			r.phase(t, "resetting")
			r.start(t, removeUnit, false, "disable systemd-nspawn@kube1.service", `"enabled"`)
			h.MustRun(t, "systemctl is-active systemd-nspawn@kube1.service && umount /etc/systemd/system")
		})
		t.Run("settings of a machine that runs", func(t *testing.T) {
			before := h.MustRun(t, "ls "+paths.Nspawn("kube1")+" "+paths.DropInFile("kube1")+" "+paths.BPFMount("kube1"))
			r.phase(t, "resetting")
			r.start(t, settingsUnit, false, "machine kube1 runs", "systemctl stop systemd-nspawn@kube1.service")
			if after := h.MustRun(t, "ls "+paths.Nspawn("kube1")+" "+paths.DropInFile("kube1")+" "+paths.BPFMount("kube1")); after != before {
				t.Errorf("files %s, want %s", after, before)
			}
			r.removes(t)
		})
		t.Run("masked", func(t *testing.T) {
			r.up(t)
			h.MustRun(t, "ln -s /dev/null /etc/systemd/system/systemd-nspawn@kube1.service; systemctl daemon-reload")
			r.removes(t)
			h.MustRun(t, "rm /etc/systemd/system/systemd-nspawn@kube1.service; systemctl daemon-reload")
			r.gone(t)
		})
		t.Run("settings, busy", func(t *testing.T) {
			h.MustRun(t, "mountpoint "+paths.BPF+"/kube1; cd "+paths.BPF+"/kube1 && exec sleep 1000 >/dev/null 2>&1 & sleep 0.5")
			r.start(t, settingsUnit, false, paths.BPF+"/kube1", "sleep")
			h.MustRun(t, "pkill -x sleep")
		})
		t.Run("settings", func(t *testing.T) {
			r.start(t, settingsUnit, true)
			if got := h.MustRun(t, "ls -d /etc/systemd/system/*.wants /etc/systemd/nspawn /run/bpffs "+paths.DropIn("kube1")+" "+paths.BPFMount("kube1")+" 2>/dev/null || true"); got != folders {
				t.Errorf("there are %s, want %s", got, folders)
			}
			if got := h.MustRun(t, "systemctl show -P LoadState run-bpffs-kube1.mount; systemctl show -P DropInPaths systemd-nspawn@kube1.service; systemctl list-units --failed --no-legend"); got != "not-found\n\n" {
				t.Errorf("systemd knows %q", got)
			}
			if got := h.MustRun(t, "systemctl list-unit-files --state=enabled --no-legend"); got != enabled {
				t.Errorf("enabled are %s, want %s", got, enabled)
			}
			before := h.MustRun(t, hash)
			if said := r.start(t, settingsUnit, true); strings.Contains(said, ": ") || h.MustRun(t, hash) != before {
				t.Errorf("a second run said %s", said)
			}
		})
		t.Run("nothing is installed, machined neither", func(t *testing.T) {
			h.MustRun(t, `systemctl stop systemd-machined.service; rm -f /usr/share/dbus-1/system-services/org.freedesktop.machine1.service /lib/systemd/system/dbus-org.freedesktop.machine1.service /lib/systemd/system/systemd-machined.service /lib/systemd/system/systemd-nspawn@.service
				systemctl daemon-reload; busctl call org.freedesktop.DBus /org/freedesktop/DBus org.freedesktop.DBus ReloadConfig`)
			h.MustRun(t, "mkdir -p /etc/systemd/system/machines.target.wants; ln -s /lib/systemd/system/systemd-nspawn@.service /etc/systemd/system/machines.target.wants/systemd-nspawn@kube2.service")
			r.start(t, removeUnit, true)
			r.start(t, settingsUnit, true)
			h.MustRun(t, "test ! -e /etc/systemd/system/machines.target.wants")
		})
	})
}

// removal is a host whose machine is removed again and again.
type removal struct {
	t *testing.T
	h *host.Host
}

func (r *removal) phase(t *testing.T, phase string) {
	t.Helper()
	r.h.MustRun(t, `sed -i 's/"phase": "[a-z]*"/"phase": "`+phase+`"/' `+paths.Record)
}

// up makes the machine run.
func (r *removal) up(t *testing.T) {
	t.Helper()
	r.phase(t, "installing")
	if got := r.h.Run(t, "systemctl start "+stageUnit); got.Code != 0 {
		t.Fatalf("systemctl start = %d\n%s", got.Code, r.h.Journal(t, stageUnit))
	}
	if got := r.h.MustRun(t, "systemctl is-enabled systemd-nspawn@kube1 machines.target"); got != "enabled\nenabled\n" {
		t.Errorf("enabled: %q", got)
	}
	r.h.MustRun(t, "mkdir -p /run/unbounded/restart && touch /run/unbounded/restart/kube1.kubelet")
}

// start starts a stage of reset, looks for words in what it says, and returns that.
func (r *removal) start(t *testing.T, unit string, succeeds bool, says ...string) string {
	t.Helper()
	journal := "journalctl -q --no-pager -b -o cat --cursor-file=/tmp/" + unit + " UNBOUNDED_STAGE=unbounded-machine + UNBOUNDED_STAGE=unbounded-node"
	r.h.MustRun(t, journal)
	got := r.h.Run(t, "systemctl start "+unit)
	said := r.h.MustRun(t, journal)
	t.Logf("%v\n%s", got.Took.Round(time.Millisecond), said)
	if (got.Code == 0) != succeeds {
		t.Fatalf("systemctl start %s = %d\n%s", unit, got.Code, r.h.Journal(t, unit))
	}
	for _, say := range says {
		if !strings.Contains(said, say) {
			t.Errorf("it does not say %q", say)
		}
	}
	return said
}

func (r *removal) removes(t *testing.T, says ...string) {
	t.Helper()
	r.phase(t, "resetting")
	r.start(t, removeUnit, true, says...)
	r.gone(t)
}

// gone checks what the stage of machines promises.
func (r *removal) gone(t *testing.T) {
	t.Helper()
	got := r.h.MustRun(t, `systemctl show -P ActiveState systemd-nspawn@kube1; cat /sys/fs/cgroup/machine.slice/systemd-nspawn@kube1.service/cgroup.events 2>/dev/null
		systemctl is-enabled machines.target; ls /etc/systemd/system/machines.target.wants /run/unbounded/run /run/unbounded/restart `+paths.Before+`/machine.json 2>/dev/null
		ls `+tree+paths.Built)
	want := fmt.Sprintf("inactive\ndisabled\n/run/unbounded/restart:\n\n/run/unbounded/run:\n%s\n", tree+paths.Built)
	if got != want {
		t.Errorf("after the removal: %q, want %q", got, want)
	}
	r.h.Await(t, time.Minute, `test -z "$(ls -d /run/systemd/nspawn/*/kube1 /run/systemd/machines/*kube1* 2>/dev/null)"`) // machined takes its time
}
