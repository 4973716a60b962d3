package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Result is the end of a command: its exit status is Code, -1 after a signal.
type Result struct {
	Out, Err string
	Code     int
	Took     time.Duration
}

// runLimit bounds one command in a host.
const runLimit = 10 * time.Minute

// Run runs a shell command line in the host, as root, beside its PID 1.
func (h *Host) Run(t T, script string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	result := h.run(ctx, script)
	if ctx.Err() != nil {
		t.Fatalf("%s: %v\n%s%s", script, ctx.Err(), result.Out, result.Err)
	}
	return result
}

// MustRun is Run of a command that has to succeed; it gives its output.
func (h *Host) MustRun(t T, script string) string {
	t.Helper()
	result := h.Run(t, script)
	if result.Code != 0 {
		t.Fatalf("%s: exit %d\n%s%s", script, result.Code, result.Out, result.Err)
	}
	return result.Out
}

// Journal is the text of a unit's journal in this boot.
func (h *Host) Journal(t T, unit string) string {
	t.Helper()
	return h.MustRun(t, "journalctl --no-pager -b -o cat -u "+unit)
}

// Await runs a command every now and then until it succeeds, and gives its output.
func (h *Host) Await(t T, limit time.Duration, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		result := h.run(ctx, script)
		if result.Code == 0 {
			return result.Out
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: exit %d\n%s%s", script, limit, result.Code, result.Out, result.Err)
		case <-time.After(pollInterval):
		}
	}
}

// Synced is a script that, if it reads the journal, first waits for what the journal has been sent and has not taken yet.
func Synced(script string) string {
	if strings.Contains(script, "journalctl") {
		return "journalctl --sync\n" + script
	}
	return script
}

const pollInterval = 200 * time.Millisecond

func (h *Host) run(ctx context.Context, script string) Result {
	return finish(h.Command(ctx, "/bin/sh", "-c", Synced(script)))
}

// finish runs a command to its end.
func finish(command *exec.Cmd) Result {
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	began := time.Now()
	err := command.Run()
	result := Result{Out: out.String(), Err: errs.String(), Took: time.Since(began)}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		result.Code = exit.ExitCode()
	case err != nil:
		result.Code, result.Err = -1, result.Err+err.Error()
	}
	return result
}

// Command prepares a program in the host, for callers that want its streams.
func (h *Host) Command(ctx context.Context, args ...string) *exec.Cmd {
	leader := h.Leader()
	if leader == 0 {
		return broken(ctx, "the host is off")
	}
	cgroup, err := cgroupOf(leader)
	if err != nil {
		return broken(ctx, err.Error())
	}
	return enter(ctx, cgroup, leader, []string{"--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd"}, args)
}

// Outside prepares a program beside the host: on this machine's files, but in the
// network in which OutsideIP is; it ends with the host.
func (h *Host) Outside(ctx context.Context, args ...string) *exec.Cmd {
	return enter(ctx, filepath.Join(h.cgroup, "services"), h.keeper, []string{"--mount", "--net", "--pid"}, args)
}

// enter prepares a program in namespaces of a process, as a member of a cgroup.
func enter(ctx context.Context, cgroup string, pid int, namespaces, args []string) *exec.Cmd {
	script := `echo 0 >"$1" && shift && exec nsenter "$@"`
	line := []string{"-c", script, "sh", filepath.Join(cgroup, "cgroup.procs"), "--target", strconv.Itoa(pid)}
	line = append(append(append(line, namespaces...), "--"), args...)
	command := exec.CommandContext(ctx, "/bin/sh", line...)
	command.Env = []string{"PATH=" + searchPath, "HOME=/root", "LANG=C.UTF-8", "TERM=dumb"}
	// nsenter forks into the PID namespace: its group has to be killed as a whole.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return unix.Kill(-command.Process.Pid, unix.SIGKILL) }
	command.WaitDelay = 5 * time.Second
	return command
}

// broken is a command that only says why it cannot be.
func broken(ctx context.Context, reason string) *exec.Cmd {
	return exec.CommandContext(ctx, "/bin/sh", "-c", `echo "$1" >&2; exit 125`, "sh", reason)
}

// Listen opens a socket outside the host, as a server that the host reaches at
// OutsideIP: the handler of it runs in the test. It is closed when the test ends.
func (h *Host) Listen(t T, address string) net.Listener {
	t.Helper()
	return h.listen(t, h.keeper, address)
}

// ListenInside opens a socket in the host's own network, like a foreign program
// there. It is gone when the host reboots.
func (h *Host) ListenInside(t T, address string) net.Listener {
	t.Helper()
	return h.listen(t, h.Leader(), address)
}

func (h *Host) listen(t T, pid int, address string) net.Listener {
	t.Helper()
	var listener net.Listener
	err := inNetworkOf(pid, func() (err error) {
		listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", address)
		return err
	})
	if err != nil {
		t.Fatalf("listen on %s: %v", address, err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// Dial connects to an address, numbers only, from outside the host.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := inNetworkOf(h.keeper, func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// inNetworkOf runs a function in the network namespace of a process. A socket stays
// in the namespace in which it was made.
func inNetworkOf(pid int, function func() error) error {
	namespace, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "ns/net"))
	if err != nil {
		return err
	}
	defer namespace.Close()
	done := make(chan error)
	go func() {
		// Never unlocked, so that the thread ends with this goroutine.
		runtime.LockOSThread()
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network of %d: %w", pid, err)
			return
		}
		done <- function()
	}()
	return <-done
}

// Lines splits output into its lines, without empty ones.
func Lines(output string) []string {
	return strings.FieldsFunc(output, func(r rune) bool { return r == '\n' })
}
