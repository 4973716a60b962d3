//go:build linux && amd64

// Command inject runs a program and lets one of its changes to the world fail, or the program die just before it.
//
//	inject [--do WHAT] [--at N] [--from] [--trace FILE] -- PROGRAM [ARGUMENT...]
//
// It counts the system calls by which the program, its threads and its children change files, mounts,
// swap, kernel parameters and modules, the network, or ask a service manager for something: in one order over
// all of them, so that N names the same call in each run of a program that does the same. WHAT is
//
//	count             nothing: only count
//	kill              SIGKILL to program and children; call N is not made
//	hold              nothing goes on from call N until SIGUSR1 comes; then all does
//	EIO ENOSPC …      call N is not made and has this error; only calls on files are counted
//
// With --from every call from N on has the error. With --trace each counted call is a line of FILE.
// The program's output goes to stderr. On stdout comes one line of JSON, see Report; with hold, one
// when it holds and one at the end. The exit status is the program's, 137 if it was killed.
//
// It sees the calls through a seccomp filter and ptrace, and so costs a stop for each
// call that may count and nothing for others.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Report is what came of a run.
type Report struct {
	Calls int    `json:"calls"`          // counted calls, those that were not made included
	Fired bool   `json:"fired"`          // the program came to call N
	Call  string `json:"call,omitempty"` // call N
	Exit  int    `json:"exit"`           // exit status, 128 + signal; -1 while it is held
}

// options are the command line.
type options struct {
	do      string
	at      int
	from    bool
	trace   string
	program []string
}

// errnos are the errors that a file system gives.
func errnos() map[string]unix.Errno {
	return map[string]unix.Errno{"EIO": unix.EIO, "ENOSPC": unix.ENOSPC, "EDQUOT": unix.EDQUOT, "EROFS": unix.EROFS}
}

func main() {
	// ptrace is the business of one thread.
	runtime.LockOSThread()
	if os.Args[0] == childName {
		fmt.Fprintln(os.Stderr, "inject:", becomeProgram(os.Args[1:]))
		os.Exit(127)
	}
	o, err := parse(os.Args[1:])
	if err == nil {
		var status int
		if status, err = run(o, os.Stdout, os.Stderr); err == nil {
			os.Exit(status)
		}
	}
	fmt.Fprintln(os.Stderr, "inject:", err)
	os.Exit(125)
}

func parse(args []string) (o options, err error) {
	set := flag.NewFlagSet("inject", flag.ContinueOnError)
	set.StringVar(&o.do, "do", "count", "count, kill, hold, EIO, ENOSPC, EDQUOT or EROFS")
	set.IntVar(&o.at, "at", 0, "the call, from 1")
	set.BoolVar(&o.from, "from", false, "each call from there on")
	set.StringVar(&o.trace, "trace", "", "list calls in this file")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	o.program = set.Args()
	_, isErrno := errnos()[o.do]
	switch {
	case len(o.program) == 0:
		return o, errors.New("which program?")
	case !isErrno && o.do != "count" && o.do != "kill" && o.do != "hold":
		return o, fmt.Errorf("--do %q is not known", o.do)
	}
	return o, nil
}

// run traces the program and prints the report.
func run(o options, out, errs io.Writer) (int, error) {
	t := &tracer{options: o, out: json.NewEncoder(out), errs: errs}
	t.errno = errnos()[o.do]
	if o.trace != "" {
		file, err := os.Create(o.trace)
		if err != nil {
			return 0, err
		}
		defer file.Close()
		t.list = file
	}
	if err := t.start(); err != nil {
		return 0, err
	}
	if err := t.follow(); err != nil {
		return 0, err
	}
	return t.report.Exit, t.out.Encode(t.report)
}
