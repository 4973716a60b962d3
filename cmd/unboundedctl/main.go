// Command unboundedctl is for operators: it resets a host and takes the product off it, and makes the documents
// with which image-based hosts become nodes at their first boot.
//
// What it asks systemd to do goes on without it: it can be stopped, killed or lose its terminal at any time.
//
// The rules of its user interface:
//
//  1. Standard output says what happens, a line at a time, the same on a terminal and in a file: no colour, no
//     cursor. Standard error has questions, errors and hints.
//  2. An error is one line, `unboundedctl: ...`. Hints follow it, each a command to be pasted.
//  3. Before anything is destroyed it asks, naming the host and what goes. Only y and yes are yes. It asks on a terminal
//     only: without one it wants --yes.
//  4. Exit statuses are those of the stages (docs/reference.md): a failed stage's own is passed on. 130 says that
//     following was interrupted, and nothing of the reset's end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"unbounded/internal/exit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	status := onHost().run(ctx, os.Args[1:])
	stop()
	os.Exit(int(status))
}

// interrupted is what a shell reports of a program that ended by SIGINT.
const interrupted exit.Status = 130

const usage = `usage: unboundedctl COMMAND [OPTION...]

  reset      give this host back as it was before it became a node
  uninstall  remove programs, units and configuration, once the host is reset
  ignition   print the Ignition document that makes an image-based host a node
  butane     print the same for Butane
  help       print this

options of reset:
  --yes          do not ask

options of uninstall:
  --yes          do not ask
  --keep-config  leave /etc/unbounded/agent/config.json and registry-auth.json

options of ignition and butane: see unboundedctl ignition --help
`

// options are what the commands can be told.
type options struct{ yes, keepConfig bool }

// hinted is an error with commands that help.
type hinted struct {
	error
	hints []string
}

func (h *hinted) Unwrap() error { return h.error }

// run does what args say and reports an error, once.
func (p *program) run(ctx context.Context, args []string) exit.Status {
	if len(args) == 0 {
		p.complain("%s", usage)
		return exit.Usage
	}
	if args[0] == "ignition" || args[0] == "butane" {
		return p.report(p.generate(args[0], args[1:]))
	}
	var options options
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&options.yes, "yes", false, "")
	command := p.reset
	switch args[0] {
	case "reset":
	case "uninstall":
		command = p.uninstall
		flags.BoolVar(&options.keepConfig, "keep-config", false, "")
	case "help", "-h", "-help", "--help":
		p.say("%s", usage)
		return exit.OK
	default:
		p.complain("unboundedctl: no command %q\n\n%s", args[0], usage)
		return exit.Usage
	}
	switch err := flags.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		p.say("%s", usage)
		return exit.OK
	case err != nil:
		p.complain("unboundedctl: %s: %v\n\n%s", args[0], err, usage)
		return exit.Usage
	case flags.NArg() > 0:
		p.complain("unboundedctl: %s takes no argument %q\n\n%s", args[0], flags.Arg(0), usage)
		return exit.Usage
	}
	return p.report(command(ctx, options))
}

// report says how a command has ended, in words and as a status.
func (p *program) report(err error) exit.Status {
	if err == nil {
		return exit.OK
	}
	p.complain("unboundedctl: %v\n", err)
	var with *hinted
	if errors.As(err, &with) {
		for _, hint := range with.hints {
			p.complain("  %s\n", hint)
		}
	}
	return exit.Of(err)
}

// say writes to standard output. A reader that has gone away does not stop what is under way.
func (p *program) say(format string, args ...any) { _, _ = fmt.Fprintf(p.out, format, args...) }

// complain writes to standard error.
func (p *program) complain(format string, args ...any) { _, _ = fmt.Fprintf(p.err, format, args...) }
