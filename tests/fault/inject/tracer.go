//go:build linux && amd64

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// tracer follows a program. All of it runs on one thread.
type tracer struct {
	options options
	errno   unix.Errno
	out     *json.Encoder
	errs    io.Writer
	list    io.Writer // of calls, may be nil

	first  int          // the program's process
	known  map[int]bool // threads that have had their first stop, or whose birth was announced
	killed bool
	report Report
}

const traceOptions = unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_TRACECLONE |
	unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC

func (t *tracer) start() error {
	child := exec.Command("/proc/self/exe")
	child.Args = append([]string{childName}, t.options.program...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, t.errs, t.errs
	child.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := child.Start(); err != nil {
		return err
	}
	t.first = child.Process.Pid
	t.known = map[int]bool{t.first: true}
	var status unix.WaitStatus
	if _, err := unix.Wait4(t.first, &status, unix.WALL, nil); err != nil {
		return err
	}
	if err := unix.PtraceSetOptions(t.first, traceOptions); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return unix.PtraceCont(t.first, 0)
}

// follow runs until no thread is left.
func (t *tracer) follow() error {
	for {
		var status unix.WaitStatus
		thread, err := unix.Wait4(-1, &status, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			return nil
		case err != nil:
			return err
		}
		if !status.Stopped() {
			delete(t.known, thread)
			if thread == t.first {
				t.report.Exit = status.ExitStatus()
				if status.Signaled() {
					t.report.Exit = 128 + int(status.Signal())
				}
			}
			continue
		}
		if t.killed {
			_ = unix.Kill(thread, unix.SIGKILL)
			continue
		}
		pass, err := t.stopped(thread, status)
		if err == nil && !t.killed {
			err = unix.PtraceCont(thread, pass)
		}
		// Another thread may have ended the process meanwhile.
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
}

// stopped deals with a stop; it gives the signal that the thread gets when it goes on.
func (t *tracer) stopped(thread int, status unix.WaitStatus) (pass int, err error) {
	switch signal := status.StopSignal(); {
	case signal == unix.SIGTRAP && status.TrapCause() == unix.PTRACE_EVENT_SECCOMP:
		return 0, t.called(thread)
	case signal == unix.SIGTRAP && status.TrapCause() > 0:
		if status.TrapCause() != unix.PTRACE_EVENT_EXEC {
			if born, err := unix.PtraceGetEventMsg(thread); err == nil && !t.known[int(born)] {
				t.known[int(born)] = false
			}
		}
		return 0, nil
	case signal == unix.SIGSTOP && !t.known[thread]:
		t.known[thread] = true // how a thread begins its life under a tracer
		return 0, nil
	default:
		return int(signal), nil
	}
}

// called counts a call, and lets it fail if its time has come.
func (t *tracer) called(thread int) error {
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(thread, &regs); err != nil {
		return err
	}
	c, counts := classify(&peer{thread: thread}, &regs)
	if !counts || t.errno != 0 && !c.file {
		return nil
	}
	t.report.Calls++
	if t.list != nil {
		fmt.Fprintln(t.list, c)
	}
	now := t.report.Calls == t.options.at
	if !now && (!t.options.from || !t.report.Fired) {
		return nil
	}
	if now {
		t.report.Fired, t.report.Call = true, c.String()
	}
	switch {
	case t.errno != 0:
		regs.Orig_rax, regs.Rax = ^uint64(0), -uint64(t.errno)
		return unix.PtraceSetRegs(thread, &regs)
	case t.options.do == "kill":
		t.killed = true
		for thread := range t.known {
			_ = unix.Kill(thread, unix.SIGKILL)
		}
	case t.options.do == "hold":
		return t.hold()
	}
	return nil
}

// hold waits for SIGUSR1. Threads that stop meanwhile wait with it, others run on.
func (t *tracer) hold() error {
	goOn := make(chan os.Signal, 1)
	signal.Notify(goOn, unix.SIGUSR1)
	defer signal.Stop(goOn)
	held := t.report
	held.Exit = -1
	if err := t.out.Encode(held); err != nil {
		return err
	}
	<-goOn
	return nil
}
