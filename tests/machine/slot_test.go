//go:build host

package machine

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"unbounded/internal/cgroup"
	"unbounded/internal/machined"
	"unbounded/internal/systemd"
)

const nspawnUnit = "systemd-nspawn@kube1.service"

// run runs a shell line on the host that this test is in.
func run(t *testing.T, line string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

func TestInsideInner(t *testing.T) {
	inside(t)
	m := dial(t)
	if _, err := m.Inner(t.Context(), "kube1"); !errors.Is(err, systemd.ErrClosed) {
		t.Errorf("Inner() of a machine that does not run = %v, want ErrClosed", err)
	}
	if _, err := m.Start(within(t, 30*time.Second), nspawnUnit); err != nil {
		t.Fatal(err)
	}
	inner, err := m.Inner(within(t, 30*time.Second), "kube1")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	one, err := inner.Start(within(t, 30*time.Second), "containerd.service")
	if err != nil || one.MainPID == 0 {
		t.Fatalf("Start() = %+v, %v", one, err)
	}
	if err := m.WaitSocket(within(t, 30*time.Second), "kube1", "/run/containerd/containerd.sock"); err != nil {
		t.Errorf("WaitSocket() = %v", err)
	}
	if err := m.WaitSocket(within(t, time.Second), "kube1", "/run/nothing.sock"); err == nil {
		t.Error("WaitSocket() of nothing = nil")
	}
	run(t, "ln -s /run/systemd/journal/stdout /var/lib/machines/kube1/srv/link.sock")
	if err := m.WaitSocket(within(t, time.Second), "kube1", "/srv/link.sock"); err == nil {
		t.Error("WaitSocket() of a link that would lead to the host = nil")
	}
	unit(t, "t-machine-test.service", "[Service]\nExecStart=/bin/true\n")
	if p, err := inner.Properties(t.Context(), "t-machine-test.service"); err != nil || p.LoadState != "not-found" {
		t.Errorf("Properties() of a unit of the host = %+v, %v: not the machine's manager", p, err)
	}
	for command, row := range map[string]struct {
		pause    time.Duration
		restarts int
	}{
		// Of a thousand restarts about one has both its stop and the start after it swallowed.
		"daemon-reload": {40 * time.Millisecond, 50},
		"daemon-reexec": {300 * time.Millisecond, 5}, // which itself takes most of that
	} {
		stop := disturb(t, row.pause, []string{"systemctl", "-M", "kube1", command})
		for range row.restarts {
			p, err := inner.Restart(within(t, 60*time.Second), "containerd.service")
			if err != nil || p.ActiveState != "active" {
				t.Errorf("Restart() during %s = %+v, %v", command, p, err)
			}
		}
		t.Logf("%d times %s in the machine", stop(), command)
	}
	run(t, "systemctl restart "+nspawnUnit)
	if _, err := inner.Properties(within(t, 30*time.Second), "containerd.service"); !errors.Is(err, systemd.ErrClosed) {
		t.Errorf("Properties() after the machine was started again = %v, want ErrClosed", err)
	}
	if _, err := m.Stop(within(t, 30*time.Second), nspawnUnit); err != nil {
		t.Fatal(err)
	}
}

// TestInsideSlot takes machined away from the host in the end.
func TestInsideSlot(t *testing.T) {
	inside(t)
	m := dial(t)
	runs := func(t *testing.T, want bool) {
		t.Helper()
		got, err := m.SlotRuns(within(t, 30*time.Second), "kube1")
		// machined queues another stop of a machine that it sees end: for a moment that is a job.
		for deadline := time.Now().Add(15 * time.Second); err == nil && got && !want && time.Now().Before(deadline); {
			got, err = m.SlotRuns(within(t, 30*time.Second), "kube1")
		}
		if err != nil || got != want {
			t.Errorf("SlotRuns() = %v, %v, want %v", got, err, want)
		}
	}
	found := func(t *testing.T, want bool) {
		t.Helper()
		leader, root, got, err := m.Machine(t.Context(), "kube1")
		if err != nil || got != want || want && (leader == 0 || root != tree) {
			t.Errorf("Machine() = %d, %s, %v, %v, want found %v", leader, root, got, err, want)
		}
	}
	start := func(t *testing.T) {
		t.Helper()
		if p, err := m.Start(within(t, 30*time.Second), nspawnUnit); err != nil || p.ActiveState != "active" {
			t.Fatalf("Start() = %+v, %v", p, err)
		}
	}
	stop := func(t *testing.T) {
		t.Helper()
		p, err := m.Stop(within(t, 30*time.Second), nspawnUnit)
		for deadline := time.Now().Add(15 * time.Second); err == nil && p.Runs() && time.Now().Before(deadline); { // machined's, too
			p, err = m.Properties(within(t, 30*time.Second), nspawnUnit)
		}
		if err != nil || p.Runs() {
			t.Fatalf("Stop() = %+v, %v", p, err)
		}
	}
	t.Run("never started", func(t *testing.T) {
		runs(t, false)
		found(t, false)
		if got, err := m.SlotRuns(t.Context(), "kube2"); err != nil || got {
			t.Errorf("SlotRuns(kube2) = %v, %v, want false", got, err)
		}
	})
	t.Run("running, then stopped", func(t *testing.T) {
		start(t)
		runs(t, true)
		found(t, true)
		stop(t)
		runs(t, false)
		found(t, false)
	})
	t.Run("masked unit that runs", func(t *testing.T) {
		start(t)
		run(t, "ln -s /dev/null /etc/systemd/system/"+nspawnUnit+"; systemctl daemon-reload")
		runs(t, true)
		run(t, "rm /etc/systemd/system/"+nspawnUnit+"; systemctl daemon-reload")
		stop(t)
	})
	t.Run("queued behind another job", func(t *testing.T) {
		unit(t, "t-first.service", "[Unit]\nBefore="+nspawnUnit+"\n[Service]\nType=oneshot\nExecStart=/bin/sleep 2\n")
		run(t, "systemctl start --no-block t-first.service "+nspawnUnit)
		runs(t, true)
		run(t, "systemctl start "+nspawnUnit)
		stop(t)
	})
	t.Run("killed, waits for its restart", func(t *testing.T) {
		start(t)
		run(t, "kill -KILL $(systemctl show -P MainPID "+nspawnUnit+"); timeout 10 sh -c 'until test $(systemctl show -P SubState "+nspawnUnit+") = auto-restart; do sleep 0.02; done'")
		runs(t, true)
		stop(t)
		if err := cgroup.AwaitEmpty(within(t, 30*time.Second), "/machine.slice/"+nspawnUnit); err != nil {
			t.Error(err)
		}
		runs(t, false)
		if _, err := machined.Forget(t.Context(), "kube1", nspawnUnit); err != nil {
			t.Errorf("Forget() = %v", err)
		}
		run(t, "umount /run/systemd/nspawn/unix-export/kube1 || true")
	})
	t.Run("processes left by a unit that has failed", func(t *testing.T) {
		const group = "/sys/fs/cgroup/machine.slice/" + nspawnUnit
		run(t, "mkdir -p "+group)
		left := exec.CommandContext(t.Context(), "sleep", "100")
		if err := left.Start(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(group+"/cgroup.procs", []byte(strconv.Itoa(left.Process.Pid)), 0o644); err != nil {
			t.Fatal(err)
		}
		runs(t, true)
		_ = left.Process.Kill()
		_ = left.Wait()
		runs(t, false)
	})
	t.Run("machined masked", func(t *testing.T) {
		start(t)
		run(t, "systemctl mask --now systemd-machined.service")
		runs(t, true)
		_, _, got, err := m.Machine(t.Context(), "kube1")
		if got || !errors.Is(err, systemd.ErrCannotTell) || !strings.Contains(err.Error(), "unmask") {
			t.Errorf("Machine() = %v, %v, want that it cannot tell, because of the mask", got, err)
		}
		stop(t)
		runs(t, false)
		run(t, "systemctl unmask systemd-machined.service")
		// It was away when the machine ended, and takes it for running.
		if _, err := machined.Forget(t.Context(), "kube1", nspawnUnit); err != nil {
			t.Errorf("Forget() = %v", err)
		}
		found(t, false)
	})
	t.Run("machined of another unit is left alone", func(t *testing.T) {
		start(t)
		if forgotten, err := machined.Forget(t.Context(), "kube1", "other.service"); forgotten || err == nil || !strings.Contains(err.Error(), nspawnUnit) {
			t.Errorf("Forget() = %v, %v, want an error that names %s", forgotten, err, nspawnUnit)
		}
		found(t, true)
		stop(t)
	})
	t.Run("machined cannot start", func(t *testing.T) {
		run(t, "systemctl stop systemd-machined.service; mkdir -p /run/systemd/system/systemd-machined.service.d; printf '[Service]\\nExecStart=\\nExecStart=/bin/false\\nRestart=no\\n' >/run/systemd/system/systemd-machined.service.d/x.conf; systemctl daemon-reload")
		began := time.Now()
		_, _, got, err := m.Machine(t.Context(), "kube1")
		if got || !errors.Is(err, systemd.ErrCannotTell) || !strings.Contains(err.Error(), "systemd-machined.service has failed") {
			t.Errorf("Machine() = %v, %v, want that machined has failed", got, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("Machine() took %v", took)
		}
		run(t, "rm -r /run/systemd/system/systemd-machined.service.d; systemctl daemon-reload; systemctl reset-failed systemd-machined.service")
	})
	t.Run("machined is not installed", func(t *testing.T) {
		run(t, `systemctl stop systemd-machined.service; rm -f /usr/share/dbus-1/system-services/org.freedesktop.machine1.service /lib/systemd/system/dbus-org.freedesktop.machine1.service /lib/systemd/system/systemd-machined.service
			systemctl daemon-reload; busctl call org.freedesktop.DBus /org/freedesktop/DBus org.freedesktop.DBus ReloadConfig`)
		_, _, got, err := m.Machine(t.Context(), "kube1")
		if got || !errors.Is(err, systemd.ErrNoMachined) {
			t.Errorf("Machine() = %v, %v, want ErrNoMachined", got, err)
		}
		runs(t, false)
	})
}
