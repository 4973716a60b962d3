package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"unbounded/internal/admission"
	"unbounded/internal/exit"
	"unbounded/internal/journal"
	"unbounded/internal/lock"
	"unbounded/internal/paths"
	"unbounded/internal/record"
)

const usage = `usage: unbounded-admission check [--config FILE] [--prefix DIR]

Says whether admission would admit this host, and changes nothing.
`

// question is what the operator, or an installer, wants to know.
type question struct {
	root   string
	config string // "": where admission reads it
	prefix string
	slots  admission.Slots
}

func parse(args []string) (question, error) {
	q := question{root: "/", slots: slots{}}
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&q.config, "config", "", "")
	flags.StringVar(&q.prefix, "prefix", paths.DefaultRoot, "")
	err := flags.Parse(args)
	switch {
	case err != nil:
		return q, err
	case flags.NArg() > 0:
		return q, fmt.Errorf("unknown argument %q", flags.Arg(0))
	case !filepath.IsAbs(q.prefix):
		return q, fmt.Errorf("--prefix is %q, want an absolute path", q.prefix)
	}
	return q, nil
}

// runCheck is the verb check. It returns the exit status.
func runCheck(args []string, stdout, stderr io.Writer) exit.Status {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	q, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, err = io.WriteString(stdout, usage)
		return exit.Of(err)
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "unbounded-admission: %v\n%s", err, usage)
		return exit.Usage
	}
	if os.Geteuid() != 0 {
		_, _ = fmt.Fprintln(stderr, "unbounded-admission: run as root")
		return exit.NotPermitted
	}
	says, err := q.answer(ctx)
	if err == nil {
		_, err = fmt.Fprintln(stdout, says)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "unbounded-admission: %s\n", journal.Line(err))
	}
	return exit.Of(err)
}

// answer is why the host would be admitted; the error is why not.
func (q question) answer(ctx context.Context) (string, error) {
	if err := lock.Look(q.root); err != nil {
		if _, held := errors.AsType[*lock.HeldError](err); held {
			return "", exit.As(exit.Held, err)
		}
		return "", err
	}
	request := admission.Request{
		Root: q.root, Prefix: q.prefix, Credentials: paths.At(q.root, paths.SystemCredentials), Slots: q.slots,
	}
	r, err := admission.Check(ctx, request, q.config)
	switch {
	case err != nil:
		return "", err
	case r.InstallID == "":
		return "this host is nobody's, and would be admitted", nil
	}
	if err := q.samePlace(r); err != nil {
		return "", err
	}
	return fmt.Sprintf("this host is of installation %s, phase %s, and would be admitted", r.InstallID, r.Phase), nil
}

// samePlace refuses a second set of programs beside those of the installation: units, record and reset know one prefix.
func (q question) samePlace(r record.Record) error {
	if r.Foreign() || paths.At(q.root, r.Prefix) == resolved(paths.At(q.root, q.prefix)) {
		return nil
	}
	return exit.As(exit.Refused, fmt.Errorf("this host is installed below %s, not below %s: install there, or reset the host first", r.Prefix, q.prefix))
}

// resolved is path without links, as the record has it; path itself where there is nothing yet.
func resolved(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return filepath.Clean(path)
}
