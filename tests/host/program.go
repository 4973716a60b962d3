package host

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"slices"

	"golang.org/x/sys/unix"
)

// program is the T of a program that boots hosts outside of a test.
type program struct {
	ctx      context.Context //nolint:containedctx // a T has a context; testing.T has one too
	log      io.Writer
	cleanups []func()
	failed   bool
}

// fatal is how Fatalf gets out of the program's function.
type fatal struct{}

// Program runs a function that boots hosts, and takes them away after it, also when
// it is interrupted. It gives the exit status of the program.
func Program(log io.Writer, run func(t T)) (code int) {
	Enter()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	p := &program{ctx: ctx, log: log}
	p.run(run)
	for _, cleanup := range slices.Backward(p.cleanups) {
		cleanup()
	}
	if err := Leave(); err != nil {
		p.fail("left behind: %v", err)
	}
	if p.failed {
		return 1
	}
	return 0
}

func (p *program) run(run func(t T)) {
	defer func() {
		if reason := recover(); reason != nil && reason != (fatal{}) {
			panic(reason)
		}
	}()
	run(p)
}

func (p *program) fail(format string, args ...any) {
	p.failed = true
	p.Logf(format, args...)
}

func (p *program) Helper()                  {}
func (p *program) Cleanup(function func())  { p.cleanups = append(p.cleanups, function) }
func (p *program) Context() context.Context { return p.ctx }
func (p *program) Failed() bool             { return p.failed }

func (p *program) Logf(format string, args ...any) { fmt.Fprintf(p.log, format+"\n", args...) }

func (p *program) Fatalf(format string, args ...any) {
	p.fail(format, args...)
	panic(fatal{})
}
