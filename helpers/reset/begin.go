package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/installed"
	"unbounded/internal/journal"
	"unbounded/internal/lock"
	"unbounded/internal/paths"
	"unbounded/internal/proc"
	"unbounded/internal/record"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

const (
	// patience is how long the lock is waited for, once everything of ours was stopped. The daemon that
	// asked for the reset lets go of it within that.
	patience = 30 * time.Second
	// round is how long it is waited for before what runs is stopped again.
	round = 2 * time.Second
)

// units is the service manager of the host.
type units interface {
	Disable(ctx context.Context, unit string) (bool, error)
	ListUnits(ctx context.Context, patterns ...string) (map[string]string, error)
	Stop(ctx context.Context, unit string) (systemd.Properties, error)
	ResetFailed(ctx context.Context, unit string) error
	Reload(ctx context.Context) error
}

func begin(ctx context.Context, env *stage.Env) error {
	prefix, err := installed.Prefix()
	if err != nil {
		return err
	}
	manager, err := systemd.Connect(ctx)
	if err != nil {
		return err
	}
	defer manager.Close()
	if proc.Unit("/proc", os.Getpid()) == paths.ResetBeginUnit {
		if follows, err := endFollows(ctx, manager); err != nil || !follows {
			env.Log.Info("%s does not wait for this: another reset is ending, or a stage was started by hand; nothing is begun", paths.ResetReleaseUnit)
			return err
		}
	}
	return start(ctx, env, manager, prefix, patience)
}

// endFollows tells whether the last stage waits for this one, as in every start of the target. A second start, at the moment
// when the reset is ending, runs all stages again but that one: what it began nobody would end.
func endFollows(ctx context.Context, manager *systemd.Manager) (bool, error) {
	end, err := manager.Properties(ctx, paths.ResetReleaseUnit)
	return err == nil && end.Job != 0 && (end.ActiveState == "inactive" || end.ActiveState == "failed"), err
}

// start makes the host's phase resetting. It changes nothing of the host before the record says so, but for the unit
// that would start the bootstrap again. A synthetic record gets prefix.
func start(ctx context.Context, env *stage.Env, manager units, prefix string, limit time.Duration) (err error) {
	changed, err := manager.Disable(ctx, paths.BootUnit)
	if err != nil {
		return fmt.Errorf("keep %s from starting at boot: %w", paths.BootUnit, err)
	}
	if changed {
		if err := durable.SyncDir(paths.At(env.Root, paths.SystemdDir)); err != nil {
			return err
		}
		env.Log.Changed(paths.BootUnit, "no longer starts at boot")
	}
	if err := hold(ctx, env, manager, prefix); err != nil {
		return err
	}
	held, err := alone(ctx, env, manager, limit)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.Release()) }()
	return own(ctx, env, prefix)
}

// heldAtBoot is the drop-in at paths.HeldAtBoot.
const heldAtBoot = `# Written by ` + paths.ResetBeginUnit + `: this host was reset. A system extension starts
# ` + paths.BootUnit + ` at every boot, and cannot be told not to; without this file it
# would make the host a node again. Remove the file if that is what you want.
[Unit]
ConditionPathExists=!` + paths.HeldAtBoot + `
`

// hold does what Disable does, on a host where no link but a system extension starts the unit of the boot.
func hold(ctx context.Context, env *stage.Env, manager units, prefix string) error {
	_, merged, err := installed.Extension(env.Root, prefix)
	if err != nil || !merged {
		return err
	}
	changed, err := durable.Write(paths.At(env.Root, paths.HeldAtBoot), []byte(heldAtBoot), 0o644)
	if err != nil || !changed {
		return err
	}
	env.Log.Changed(paths.HeldAtBoot, "written: "+paths.BootUnit+" no longer starts at boot")
	return manager.Reload(ctx)
}

// alone stops everything of a bootstrap and takes the lock. An operator may start the bootstrap in between: its
// stages are stopped again.
func alone(ctx context.Context, env *stage.Env, manager units, limit time.Duration) (*lock.Lock, error) {
	for end := time.Now().Add(limit); ; {
		if err := cancel(ctx, env, manager); err != nil {
			return nil, err
		}
		held, err := lock.Wait(ctx, env.Root, lock.Exclusive, min(round, limit), func(other *lock.HeldError) {
			env.Log.Status("waiting for the lock: %v", other)
		})
		var other *lock.HeldError
		switch {
		case err == nil:
			return held, nil
		case !errors.As(err, &other):
			return nil, err
		case ctx.Err() != nil || time.Now().After(end):
			return nil, exit.As(exit.Held, err)
		}
	}
}

// cancel stops the unit of the boot and who waits for that, then the target, then the stages, the last first: so none of
// those that wait for another starts meanwhile.
func cancel(ctx context.Context, env *stage.Env, manager units) error {
	loaded, err := manager.ListUnits(ctx, "unbounded-*.service", "unbounded-*.target")
	if err != nil {
		return err
	}
	for _, unit := range ofBootstrap(loaded) {
		if state := loaded[unit]; state != "inactive" && state != "failed" {
			env.Log.Status("stopping %s", unit)
			env.Log.Changed(unit, "stopped: it was "+state)
		}
		// Also what is inactive: a job to start it may be waiting, and this cancels it.
		after, err := manager.Stop(ctx, unit)
		if err != nil {
			return err
		}
		if after.Runs() {
			return fmt.Errorf("%s runs although it was stopped: see `systemctl status %s`", unit, unit)
		}
		systemd.Forget(ctx, manager, env.Log.Warn, unit)
	}
	return nil
}

// ofBootstrap are those of the loaded units that a bootstrap, or a repave, consists of, in the order in which they are to be
// stopped. The daemon is not of them: it may be who asked for the reset, and is stopped when the record says so. Nor is what
// starts the unit of the boot on hosts with the system extension: stopped, it would be started again at once.
func ofBootstrap(loaded map[string]string) []string {
	order := slices.Concat([]string{paths.BootCompleteUnit, paths.BootUnit, paths.Target}, backwards(paths.StageUnits(paths.Slots()[0])))
	rank := func(unit string) int {
		if at := slices.Index(order, unit); at >= 0 {
			return at
		}
		if strings.HasSuffix(unit, ".target") {
			return slices.Index(order, paths.Target)
		}
		return slices.Index(order, paths.Target) + 1
	}
	var found []string
	for unit := range loaded {
		other := strings.HasPrefix(unit, "unbounded-reset") || unit == paths.FailedUnit || unit == paths.AutostartTarget ||
			strings.HasPrefix(unit, "unbounded-agent-daemon")
		if !other {
			found = append(found, unit)
		}
	}
	slices.SortFunc(found, func(a, b string) int {
		if c := rank(a) - rank(b); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	return found
}

func backwards(list []string) []string {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

// own makes the phase resetting. The marker goes first: a complete host whose record cannot be written
// is looked at by the next admission, which makes it again.
func own(ctx context.Context, env *stage.Env, prefix string) error {
	if _, err := durable.Remove(paths.At(env.Root, paths.Complete)); err != nil {
		return err
	}
	r, why, err := record.Open(env.Root).Retire(ctx, prefix) // Commit point.
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: make room for the install record, for example with `rm -r %s`, then reset again", err, paths.Content)
	}
	if err != nil {
		return err
	}
	env.Record = r
	env.Log = env.Log.With(journal.FieldInstall, r.InstallID)
	switch {
	case errors.Is(why, record.ErrNone):
		env.Log.Notice("there is no install record: what is found of a node on this host is removed all the same")
	case why != nil:
		env.Log.Warn("the install record cannot be used and was replaced: %v", why)
	}
	env.Log.Changed(paths.Record, "phase resetting")
	return nil
}
