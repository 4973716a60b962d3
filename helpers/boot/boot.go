package main

import (
	"context"
	"fmt"
	"time"

	"unbounded/internal/exit"
	"unbounded/internal/journal"
	"unbounded/internal/paths"
)

const (
	shortest = 10 * time.Second
	longest  = 5 * time.Minute
)

// outcome is how one attempt ended.
type outcome struct {
	err    error // nil: the target succeeded
	stages []ended
}

// ended is a stage that failed in the attempt.
type ended struct {
	unit   string
	code   int32 // of waitid: 1 exited
	status int32
}

// attempter makes one attempt and waits for its end. An error in the outcome is an ordinary end.
type attempter interface {
	attempt(ctx context.Context) outcome
}

type boot struct {
	log    *journal.Log
	target attempter
	sleep  func(context.Context, time.Duration)
	random func() float64
}

// run attempts until one succeeds, or is refused: then the error has that status. When systemd stops us,
// as reset does, that is no failure.
func (b *boot) run(ctx context.Context) error {
	for failures := 0; ctx.Err() == nil; failures++ {
		b.log.Status("attempt %d: %s is being started", failures+1, paths.Target)
		got := b.target.attempt(ctx)
		if got.err == nil {
			return nil
		}
		if ctx.Err() != nil {
			break
		}
		if unit := refused(got); unit != "" {
			b.log.Status("attempt %d: %s was refused, and a retry cannot help", failures+1, unit)
			return exit.As(exit.Refused, fmt.Errorf("%s was refused, and a retry cannot help: see `journalctl -b -u %s`", unit, unit))
		}
		wait := backoff(failures, b.random())
		b.log.Notice("attempt %d: %s; next one in %s", failures+1, reason(got), wait)
		b.log.Status("attempt %d failed: %s; next one in %s", failures+1, reason(got), wait)
		b.sleep(ctx, wait)
	}
	return nil //nolint:nilerr // the last attempt failed because we were stopped, or before
}

// refused is the stage, or the target itself, that a retry cannot help; "" if there is none.
func refused(o outcome) string {
	for _, stage := range o.stages {
		if stage.code != 1 {
			continue
		}
		if status := exit.Status(stage.status); status == exit.Refused || status == exit.Usage || status == exit.NotPermitted {
			return stage.unit
		}
	}
	if exit.Of(o.err) == exit.Refused {
		return paths.Target
	}
	return ""
}

// reason is what failed, in a few words.
func reason(o outcome) string {
	if len(o.stages) == 0 {
		return o.err.Error()
	}
	stage := o.stages[0]
	switch {
	case stage.code != 1:
		return stage.unit + " was killed"
	case exit.Status(stage.status) == exit.Held:
		return stage.unit + " found the lock held"
	}
	return fmt.Sprintf("%s ended with %d", stage.unit, stage.status)
}

// backoff is the wait after so many failures: between shortest·2ⁿ and twice that, at random, so that hosts
// that lost the same server do not come back together; longest at most.
func backoff(failures int, random float64) time.Duration {
	low := shortest
	for range failures {
		low = min(2*low, longest/2)
	}
	high := min(2*low, longest)
	return (low + time.Duration(random*float64(high-low))).Round(time.Second)
}
