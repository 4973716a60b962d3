package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"unbounded/internal/exit"
	"unbounded/internal/follow"
	"unbounded/internal/installed"
	"unbounded/internal/run"
	"unbounded/internal/systemd"
)

// program is unboundedctl with what it works with.
type program struct {
	in       io.Reader
	terminal bool // in is one
	out, err io.Writer
	root     string // "/" on a host; a test's own root otherwise
	user     int
	hostname func() (string, error)
	self     func() (string, error) // the program's own file
	connect  func(context.Context) (manager, error)
	// logged are the last lines in the journal about a unit since a time.
	logged func(ctx context.Context, unit string, since time.Time) ([]string, error)
}

// manager is the service manager of the host.
type manager interface {
	follow.Manager
	Watch(units ...string) watch
	ListUnits(ctx context.Context, patterns ...string) (map[string]string, error)
	Until(ctx context.Context, unit string, done func(systemd.Properties) bool) (systemd.Properties, error)
	Disable(ctx context.Context, unit string) (bool, error)
	ResetFailed(ctx context.Context, unit string) error
	Reload(ctx context.Context) error
	Close()
}

type watch interface {
	follow.Watch
	Close(ctx context.Context)
}

// connected is a manager whose Watch is an interface.
type connected struct{ *systemd.Manager }

func (c connected) Watch(units ...string) watch { return c.Manager.Watch(units...) }

func onHost() *program {
	_, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), unix.TCGETS)
	return &program{
		in: os.Stdin, terminal: err == nil, out: os.Stdout, err: os.Stderr,
		root: "/", user: os.Geteuid(), hostname: os.Hostname, self: installed.Program,
		connect: func(ctx context.Context) (manager, error) {
			m, err := systemd.Connect(ctx)
			return connected{m}, err
		},
		logged: logged,
	}
}

// logged asks journalctl: no library in Go reads a journal.
func logged(ctx context.Context, unit string, since time.Time) ([]string, error) {
	const most = 20
	out, err := run.Command(ctx, run.Env(), "journalctl", "--quiet", "--no-pager", "--output=cat", "--boot",
		"--lines="+strconv.Itoa(most), "--since=@"+strconv.FormatInt(since.Unix(), 10), "--unit="+unit)
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}

// asRoot refuses everybody else, before a question is asked that leads nowhere.
func (p *program) asRoot() error {
	if p.user != 0 {
		return exit.As(exit.NotPermitted, errors.New("not permitted: run it as root"))
	}
	return nil
}

// confirm asks question on a terminal, with "[y/N]", unless yes is given. An error is a no.
func (p *program) confirm(ctx context.Context, yes bool, describe, question string) error {
	if yes {
		return nil
	}
	if !p.terminal {
		return exit.As(exit.Usage, errors.New("no terminal to ask on: say --yes if that is what you want"))
	}
	p.complain("%s\n%s [y/N] ", describe, question)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(p.in).ReadString('\n') // the end of the input is no answer
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		p.complain("\n")
		return exit.As(interrupted, errors.New("interrupted: nothing was changed"))
	case got := <-answer:
		if got == "y" || got == "yes" {
			return nil
		}
		return fmt.Errorf("answered %q, not yes: nothing was changed", got)
	}
}
