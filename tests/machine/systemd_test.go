//go:build host

package machine

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"unbounded/internal/systemd"
)

// unit writes a unit file for the life of the test.
func unit(t *testing.T, name, content string) {
	t.Helper()
	path := "/run/systemd/system/" + name
	if err := os.MkdirAll("/run/systemd/system", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "daemon-reload")
	t.Cleanup(func() {
		_ = quietly("systemctl", "stop", name)
		_ = quietly("systemctl", "reset-failed", name)
		_ = os.Remove(path)
		_ = quietly("systemctl", "daemon-reload")
	})
}

func systemctl(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "systemctl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// quietly runs a program that may fail, also after the end of the test, and not for long.
func quietly(program string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, program, args...).Run()
}

func dial(t *testing.T) *systemd.Manager {
	t.Helper()
	m, err := systemd.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func TestInsideJobs(t *testing.T) {
	inside(t)
	m := dial(t)
	unit(t, "t-good.service", "[Service]\nType=oneshot\nExecStart=/bin/sleep 0.2\n")
	unit(t, "t-bad.service", "[Service]\nType=oneshot\nNotifyAccess=all\nExecStart=/bin/sh -c 'systemd-notify --status=\"wait for godot\"; exit 78'\n")
	unit(t, "t-late.service", "[Service]\nType=oneshot\nTimeoutStartSec=1\nExecStart=/bin/sleep 60\n")
	unit(t, "t-unmet.service", "[Unit]\nConditionPathExists=/nowhere\n[Service]\nType=oneshot\nExecStart=/bin/true\n")
	unit(t, "t-behind.service", "[Unit]\nRequires=t-bad.service\nAfter=t-bad.service\n[Service]\nType=oneshot\nExecStart=/bin/true\n")
	unit(t, "t-daemon.service", "[Service]\nExecStart=/bin/sleep 1000\n")

	t.Run("oneshot", func(t *testing.T) {
		p, err := m.Start(within(t, 30*time.Second), "t-good.service")
		if err != nil || !p.ConditionResult || p.Result != "success" || p.InvocationID == "" || p.ExecMainCode != 1 {
			t.Errorf("Start() = %+v, %v, want a finished oneshot with its results", p, err)
		}
	})
	t.Run("unmet condition is done, and shows", func(t *testing.T) {
		p, err := m.Start(within(t, 30*time.Second), "t-unmet.service")
		if err != nil || p.ConditionResult {
			t.Errorf("Start() = %+v, %v, want ConditionResult false and no error", p, err)
		}
	})
	for _, tt := range []struct {
		unit, result, unitResult string
		status                   int32
	}{
		{"t-bad.service", systemd.ResultFailed, "exit-code", 78},
		{"t-late.service", systemd.ResultFailed, "timeout", 15},
		{"t-behind.service", systemd.ResultDependency, "success", 0},
	} {
		t.Run(tt.unit, func(t *testing.T) {
			_, err := m.Start(within(t, 30*time.Second), tt.unit)
			job, ok := errors.AsType[*systemd.JobError](err)
			if !ok {
				t.Fatalf("Start() = %v, want a *JobError", err)
			}
			if job.Result != tt.result || job.Unit.Result != tt.unitResult || job.Unit.ExecMainStatus != tt.status {
				t.Errorf("Start() = %v, %+v, want job %s, unit %s, status %d", job, job.Unit, tt.result, tt.unitResult, tt.status)
			}
			t.Log(err)
		})
	}
	t.Run("no unit", func(t *testing.T) {
		if _, err := m.Start(within(t, 30*time.Second), "t-nothing.service"); !errors.Is(err, systemd.ErrNoUnit) {
			t.Errorf("Start() = %v, want ErrNoUnit", err)
		}
		if p, err := m.Stop(within(t, 30*time.Second), "t-nothing.service"); err != nil || p.LoadState != "not-found" {
			t.Errorf("Stop() = %+v, %v, want that it is not there, and no error", p, err)
		}
		if p, err := m.Properties(t.Context(), "t-nothing.service"); err != nil || p.LoadState != "not-found" || p.Runs() {
			t.Errorf("Properties() = %+v, %v, want not-found", p, err)
		}
		if _, err := m.UnitFileState(t.Context(), "t-nothing.service"); !errors.Is(err, systemd.ErrNoUnit) {
			t.Errorf("UnitFileState() = %v, want ErrNoUnit", err)
		}
		if err := m.ResetFailed(t.Context(), "t-nothing.service"); err != nil {
			t.Errorf("ResetFailed() = %v", err)
		}
	})
	t.Run("masked", func(t *testing.T) {
		systemctl(t, "mask", "t-masked.service")
		t.Cleanup(func() { _ = quietly("systemctl", "unmask", "t-masked.service") })
		if _, err := m.Start(within(t, 30*time.Second), "t-masked.service"); !errors.Is(err, systemd.ErrMasked) {
			t.Errorf("Start() = %v, want ErrMasked", err)
		}
	})
	t.Run("start, restart and stop a daemon", func(t *testing.T) {
		one, err := m.Start(within(t, 30*time.Second), "t-daemon.service")
		if err != nil || one.MainPID == 0 {
			t.Fatalf("Start() = %+v, %v", one, err)
		}
		again, err := m.Start(within(t, 30*time.Second), "t-daemon.service")
		if err != nil || again.MainPID != one.MainPID {
			t.Errorf("second Start() = %+v, %v, want the same process", again, err)
		}
		two, err := m.Restart(within(t, 30*time.Second), "t-daemon.service")
		if err != nil || two.MainPID == 0 || two.MainPID == one.MainPID {
			t.Errorf("Restart() = %+v, %v, want another process", two, err)
		}
		if p, err := m.Stop(within(t, 30*time.Second), "t-daemon.service"); err != nil || p.Runs() {
			t.Errorf("Stop() = %+v, %v", p, err)
		}
	})
	t.Run("wait ends with its context, the job goes on", func(t *testing.T) {
		began := time.Now()
		unit(t, "t-slow.service", "[Service]\nType=oneshot\nExecStart=/bin/sleep 30\n")
		_, err := m.Start(within(t, 500*time.Millisecond), "t-slow.service")
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
			t.Errorf("Start() = %v after %v", err, time.Since(began))
		}
		if p, err := m.Properties(t.Context(), "t-slow.service"); err != nil || p.ActiveState != "activating" || p.Job == 0 {
			t.Errorf("Properties() = %+v, %v, want a job that goes on", p, err)
		}
	})
	t.Run("cancelled by somebody", func(t *testing.T) {
		unit(t, "t-slow2.service", "[Service]\nType=oneshot\nExecStart=/bin/sleep 30\n")
		time.AfterFunc(300*time.Millisecond, func() { _ = quietly("systemctl", "stop", "t-slow2.service") })
		_, err := m.Start(within(t, 30*time.Second), "t-slow2.service")
		if job, ok := errors.AsType[*systemd.JobError](err); !ok || job.Result != systemd.ResultCanceled {
			t.Errorf("Start() = %v, want canceled", err)
		}
	})
}

func TestInsideDisable(t *testing.T) {
	inside(t)
	m := dial(t)
	const name, path = "t-boots.service", "/etc/systemd/system/t-boots.service"
	if err := os.WriteFile(path, []byte("[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.Remove(path)
		_ = quietly("systemctl", "daemon-reload")
	})
	disable := func(t *testing.T, unit string, want, fails bool) {
		t.Helper()
		changed, err := m.Disable(t.Context(), unit)
		if changed != want || (err != nil) != fails {
			t.Errorf("Disable(%s) = %v, %v, want %v, error %v", unit, changed, err, want, fails)
		}
	}
	systemctl(t, "enable", name)
	disable(t, name, true, false)
	disable(t, name, false, false)
	disable(t, "t-nothing.service", false, false)
	disable(t, "t-nothing@kube1.service", false, false)

	systemctl(t, "enable", name)
	run(t, "mount --bind /etc/systemd/system /etc/systemd/system && mount -o remount,bind,ro /etc/systemd/system")
	disable(t, name, false, true)
	run(t, "umount /etc/systemd/system; systemctl disable "+name)
	run(t, "mount --bind /etc/systemd/system /etc/systemd/system && mount -o remount,bind,ro /etc/systemd/system")
	disable(t, name, false, false)
	run(t, "umount /etc/systemd/system")

	systemctl(t, "enable", name)
	systemctl(t, "mask", "--runtime", name)
	changed, err := m.Disable(t.Context(), name)
	systemctl(t, "unmask", "--runtime", name)
	if state, _ := m.UnitFileState(t.Context(), name); err == nil && state != "disabled" {
		t.Errorf("Disable() of a unit masked for this boot = %v, %v, and it is %s", changed, err, state)
	}

	systemctl(t, "mask", "dbus.service")
	disable(t, "dbus.service", false, false)
	systemctl(t, "unmask", "dbus.service")
}

// TestInsideDisturbed starts and stops units while the manager or the bus is pulled away all the time.
func TestInsideDisturbed(t *testing.T) {
	inside(t)
	unit(t, "t-ok.service", "[Service]\nType=oneshot\nExecStart=/bin/sleep 0.7\n")
	unit(t, "t-no.service", "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'sleep 0.7; exit 3'\n")
	unit(t, "t-stay.service", "[Service]\nExecStart=/bin/sleep 1000\n")
	for _, command := range [][]string{
		{"systemctl", "daemon-reload"},
		{"systemctl", "daemon-reexec"},
		{"systemctl", "restart", "dbus.service"},
	} {
		t.Run(strings.Join(command[1:], " "), func(t *testing.T) {
			m := dial(t)
			stop := disturb(t, 300*time.Millisecond, command)
			unknown := 0
			for round := range 6 {
				ctx := within(t, 60*time.Second)
				began := time.Now()
				if _, err := m.Start(ctx, "t-ok.service"); err != nil {
					job, ok := errors.AsType[*systemd.JobError](err)
					if !ok || job.Result != systemd.ResultUnknown {
						t.Errorf("round %d: Start(ok) = %v", round, err)
					}
					unknown++
				}
				_, err := m.Start(ctx, "t-no.service")
				if job, ok := errors.AsType[*systemd.JobError](err); !ok || job.Result != systemd.ResultFailed || job.Unit.ExecMainStatus != 3 {
					t.Errorf("round %d: Start(no) = %v, want exit status 3", round, err)
				}
				up, err := m.Restart(ctx, "t-stay.service")
				if err != nil || up.ActiveState != "active" {
					t.Errorf("round %d: Restart() = %+v, %v", round, up, err)
				}
				if down, err := m.Stop(ctx, "t-stay.service"); err != nil || down.Runs() {
					t.Errorf("round %d: Stop() = %+v, %v", round, down, err)
				}
				if err := m.Reload(ctx); err != nil {
					t.Errorf("round %d: Reload() = %v", round, err)
				}
				if runs, err := m.SlotRuns(ctx, "kube1"); err != nil || runs {
					t.Errorf("round %d: SlotRuns() = %v, %v", round, runs, err)
				}
				t.Logf("round %d took %v", round, time.Since(began).Round(time.Millisecond))
			}
			t.Logf("%d disturbances, %d results unknown", stop(), unknown)
		})
	}
}

// disturb runs command over and over until the returned function is called, which tells how often.
func disturb(t *testing.T, pause time.Duration, command []string) func() int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	count := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil {
			_ = exec.CommandContext(ctx, command[0], command[1:]...).Run()
			n++
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
		count <- n
	}()
	return func() int {
		cancel()
		n := <-count
		_ = quietly("systemctl", "reset-failed")
		_ = quietly("systemctl", "start", "dbus.socket")
		// The bus is back when this answers.
		for range 20 {
			if quietly("busctl", "--system", "--timeout=2", "status") == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		return n
	}
}

func TestInsideWithoutBus(t *testing.T) {
	inside(t)
	unit(t, "t-ok.service", "[Service]\nType=oneshot\nExecStart=/bin/sleep 0.3\n")
	unit(t, "t-no.service", "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'exit 3'\n")
	systemctl(t, "stop", "dbus.socket", "dbus.service")
	t.Cleanup(func() { _ = quietly("systemctl", "start", "dbus.socket") })
	m := dial(t)
	if _, err := m.Start(within(t, 30*time.Second), "t-ok.service"); err != nil {
		t.Errorf("Start(ok) = %v", err)
	}
	_, err := m.Start(within(t, 30*time.Second), "t-no.service")
	if job, ok := errors.AsType[*systemd.JobError](err); !ok || job.Unit.ExecMainStatus != 3 {
		t.Errorf("Start(no) = %v, want exit status 3", err)
	}
	if runs, err := m.SlotRuns(t.Context(), "kube1"); err != nil || runs {
		t.Errorf("SlotRuns() = %v, %v, want an answer without the bus", runs, err)
	}
	if _, _, _, err := m.Machine(t.Context(), "kube1"); !errors.Is(err, systemd.ErrCannotTell) {
		t.Errorf("Machine() = %v, want ErrCannotTell", err)
	}
}

// TestInsideSilentBus has a bus socket that accepts and never answers.
func TestInsideSilentBus(t *testing.T) {
	inside(t)
	const socket = "/run/dbus/system_bus_socket"
	systemctl(t, "stop", "dbus.socket", "dbus.service")
	t.Cleanup(func() { _ = quietly("systemctl", "start", "dbus.socket") })
	if err := os.RemoveAll(socket); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	began := time.Now()
	m, err := systemd.Connect(t.Context())
	if err != nil {
		t.Fatalf("Connect() = %v, want systemd's own socket", err)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("Connect() took %v", took)
	}
	if _, err := m.Properties(t.Context(), "dbus.service"); err != nil {
		t.Errorf("Properties() = %v", err)
	}
	m.Close()
	if _, err := m.Properties(t.Context(), "dbus.service"); !errors.Is(err, systemd.ErrClosed) {
		t.Errorf("Properties() after Close = %v, want ErrClosed", err)
	}
}
