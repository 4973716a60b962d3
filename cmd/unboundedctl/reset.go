package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"unbounded/internal/exit"
	"unbounded/internal/failure"
	"unbounded/internal/follow"
	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/internal/systemd"
)

const (
	again   = "systemctl start " + paths.ResetTarget
	watchIt = "systemctl status 'unbounded-reset*'"
)

// reset starts unbounded-reset.target and follows it to its end.
func (p *program) reset(ctx context.Context, options options) error {
	if err := p.asRoot(); err != nil {
		return err
	}
	name, err := p.hostname()
	if err != nil {
		return err
	}
	err = p.confirm(ctx, options.yes, fmt.Sprintf(`This gives the host %s back as it was before it became a node.

  node      %s
  removed   the machines kube1 and kube2 with all that is in them, the daemon, and the node's
            links, addresses, routes, rules and tables on this host
  restored  files, services, swap, kernel parameters and packet filter, unless changed since
  kept      programs, units and %s; the Node in the cluster
`, name, p.whose(), paths.Config), "Reset "+name+"?")
	if err != nil {
		return err
	}
	manager, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer manager.Close()
	target := follow.Target{Unit: paths.ResetTarget, Stages: paths.ResetUnits()}
	watch := manager.Watch(target.Stages...)
	defer watch.Close(ctx)
	began := time.Now()
	p.say("reset of %s: %s\n", name, paths.ResetTarget)
	failed, err := target.Run(ctx, manager, watch, p.tell)
	switch {
	case len(failed) > 0:
		return p.failure(ctx, failed[0], began)
	case err != nil:
		return lost(ctx, err)
	}
	p.say("%s is as it was before it became a node, in %s; `unboundedctl uninstall` takes off what was installed\n", name, took(time.Since(began)))
	return nil
}

// whose is what the install record says, in words.
func (p *program) whose() string {
	r, err := record.Open(p.root).Load()
	switch {
	case errors.Is(err, record.ErrNone):
		return "no install record: whatever is found of a node is removed"
	case err != nil:
		return fmt.Sprintf("%v", err)
	case r.Phase == record.Resetting:
		return fmt.Sprintf("%s, whose reset has begun and goes on", r.MachineName)
	}
	return fmt.Sprintf("%s (phase %s)", r.MachineName, r.Phase)
}

// tell shows an event as one line. What begins and ends between two looks has one line too.
func (p *program) tell(event follow.Event) {
	switch event.Kind {
	case follow.Doing:
		p.say("  %-32s  %s\n", event.Unit, event.Text)
	case follow.Done:
		p.say("  %-32s  done in %s\n", event.Unit, took(event.Took))
	case follow.Failed:
		p.say("  %-32s  failed after %s: %s\n", event.Unit, took(event.Took), ended(event.State))
	case follow.Begun:
	}
}

func took(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// ended is how the main process of a unit ended, in words.
func ended(p systemd.Properties) string {
	switch {
	case p.Result == "timeout":
		return "it ran out of time"
	case p.Result == "oom-kill":
		return "it ran out of memory"
	case p.ExecMainCode == 1:
		return fmt.Sprintf("exit status %d", p.ExecMainStatus)
	case p.ExecMainCode != 0:
		return fmt.Sprintf("signal %d", p.ExecMainStatus)
	}
	return p.Result
}

// failure says why a stage failed, and how to go on, with the status of the stage.
func (p *program) failure(ctx context.Context, event follow.Event, began time.Time) error {
	cause := ended(event.State)
	note, err := failure.Read(p.root)
	if err == nil && note.Unit == event.Unit && note.InvocationID == event.State.InvocationID {
		cause = note.Cause
	}
	lines, err := p.logged(ctx, event.Unit, began)
	if err != nil {
		lines = []string{err.Error()}
	}
	p.complain("\nlast lines of %s:\n", event.Unit)
	for _, line := range lines {
		p.complain("  | %s\n", line)
	}
	p.complain("\n")
	stays := "nothing starts on this host before a reset has ended well"
	if r, err := record.Open(p.root).Load(); event.Unit == paths.ResetBeginUnit && err == nil && r.Phase != record.Resetting {
		stays = "the reset has not begun"
	}
	return exit.As(status(event.State), &hinted{
		fmt.Errorf("%s failed: %s (%s)", event.Unit, cause, stays), []string{"journalctl -b -u " + event.Unit, again},
	})
}

// status is the stage's own where it is one that a stage ends with.
func status(p systemd.Properties) exit.Status {
	own := []exit.Status{exit.Usage, exit.StandingDown, exit.Held, exit.NotPermitted, exit.Refused}
	if s := exit.Status(p.ExecMainStatus); p.ExecMainCode == 1 && slices.Contains(own, s) {
		return s
	}
	return exit.Failed
}

// lost is the error of a reset whose end was not seen, or that did not begin.
func lost(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return exit.As(interrupted, &hinted{errors.New("interrupted: the reset goes on"), []string{watchIt}})
	case errors.Is(err, systemd.ErrNoUnit):
		return exit.As(exit.Refused, &hinted{
			fmt.Errorf("%w: unit files were installed and systemd has not read them, or were removed", err), []string{"systemctl daemon-reload"},
		})
	case errors.Is(err, systemd.ErrMasked):
		return exit.As(exit.Refused, &hinted{err, []string{"systemctl unmask " + paths.ResetTarget}})
	}
	return &hinted{err, []string{watchIt, again}}
}
