package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"unbounded/internal/before"
	"unbounded/internal/dockerd"
	"unbounded/internal/dropin"
	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/fstab"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/swap"
	"unbounded/internal/systemd"
)

// startLimit is how long the start of one unit may take; some of the host's have no limit of their own.
const startLimit = 5 * time.Minute

// manager is the service manager of a host that is given back.
type manager interface {
	dropin.Units
	Reload(ctx context.Context) error
	Start(ctx context.Context, unit string) (systemd.Properties, error)
	Oneshot(ctx context.Context, unit string) (bool, error)
	Area(ctx context.Context, unit string) (string, error)
}

func remove(ctx context.Context, env *stage.Env) error {
	units, err := systemd.Connect(ctx)
	if err != nil {
		return err
	}
	defer units.Close()
	return giver{env, units, swap.On, swap.Off}.remove(ctx)
}

// giver gives the host back.
type giver struct {
	*stage.Env
	units   manager
	swapOn  func(root, path, priority string) error
	swapOff func(root, path string) error
}

// remove decides for all that was noted whether it still is ours, then puts it back: files, then what systemd has loaded of
// them, then what ran. The packet filter is as it was before us by now (unbounded-nftables).
func (g giver) remove(ctx context.Context) (err error) {
	swept, err := dropin.SweepQuiet(g.Root)
	if err != nil {
		return err
	}
	image, err := before.Load(g.Root, concern)
	if err != nil {
		return err
	}
	if len(image.Entries()) == 0 {
		return g.removeUnnoted(ctx, swept)
	}
	restore, left, err := image.Decide(func(e before.Entry) (before.State, error) { return g.now(ctx, e) })
	if err != nil {
		return err
	}
	for _, e := range left {
		g.Log.Notice("%s was changed by somebody else since and is left as it is", e.Object)
	}
	for _, e := range restore {
		if err := g.restoreOnDisk(e); err != nil {
			return fmt.Errorf("restore %s: %w", e.Object, err)
		}
	}
	starts, err := g.plan(ctx, image, restore)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.unquiet(ctx)) }()
	if err := g.quiet(starts); err != nil {
		return err
	}
	if err := g.units.Reload(ctx); err != nil {
		return err
	}
	for _, s := range starts {
		if err := g.start(ctx, s.unit); err != nil {
			return err
		}
	}
	if err := g.restoreSwap(ctx, image, restore); err != nil {
		return err
	}
	if err := g.unquiet(ctx); err != nil {
		return err
	}
	return image.Discard()
}

// now is how the object of e is at present.
func (g giver) now(ctx context.Context, e before.Entry) (before.State, error) {
	switch e.Kind {
	case before.File:
		return before.Read(g.Root, e.Object)
	case before.Line:
		return fstab.Now(g.Root, e)
	case before.Key:
		return dockerd.Now(g.Root)
	case before.Swap:
		return swap.Now(g.Root, e)
	case before.Unit:
		p, err := g.units.Properties(ctx, e.Object)
		if p.Runs() {
			return before.Text("active"), err
		}
		return before.Text("inactive"), err
	default:
		return before.State{}, exit.As(exit.Refused, fmt.Errorf("it is of kind %s, which this release cannot restore: use a newer one", e.Kind))
	}
}

func (g giver) restoreOnDisk(e before.Entry) error {
	var changed bool
	var err error
	switch e.Kind {
	case before.Line:
		changed, err = fstab.Restore(g.Root, e)
	case before.Key:
		changed, err = dockerd.Restore(g.Root, e)
	case before.File:
		now, read := before.Read(g.Root, e.Object)
		if read != nil {
			return read
		}
		changed = !now.Same(e.Before)
		err = before.RestoreFile(g.Root, e)
	default: // what runs comes later
	}
	if changed && err == nil {
		g.Log.Changed(e.Object, "as it was before")
	}
	return err
}

// launch is a unit that is to run again.
type launch struct {
	unit  string
	quiet bool // it becomes active without running anything
}

// plan says which units are to run again. Firewalls are first, since docker adds to their rules.
func (g giver) plan(ctx context.Context, image *before.Image, restore []before.Entry) ([]launch, error) {
	var firewalls, others []launch
	for _, e := range restore {
		if e.Kind != before.Unit {
			continue
		}
		p, err := g.units.Properties(ctx, e.Object)
		if err != nil {
			return nil, err
		}
		if why := stays(e, p, image.SameBoot(e)); why != "" {
			g.Log.Notice("%s ran before and is not started: %s", e.Object, why)
			continue
		}
		if !slices.Contains(paths.Firewalls(), e.Object) {
			others = append(others, launch{e.Object, false})
			continue
		}
		oneshot, err := g.units.Oneshot(ctx, e.Object)
		if err != nil {
			return nil, err
		}
		firewalls = append(firewalls, launch{e.Object, oneshot && image.SameBoot(e)})
	}
	return append(firewalls, others...), nil
}

// stays is why a unit that ran before is not to be started, "" if it is.
func stays(e before.Entry, p systemd.Properties, sameBoot bool) string {
	enabled := func(state string) bool { return strings.HasPrefix(state, "enabled") }
	switch {
	case p.LoadState == "not-found":
		return "it is not installed any more"
	case p.LoadState == "masked":
		return "it was masked since"
	case p.UnitFileState != "disabled":
		return ""
	case enabled(e.Before.UnitFile):
		return "it was disabled since"
	case !sameBoot:
		return "it is disabled, so that the boot had not started it either"
	case p.ActiveState == "failed":
		return "it is disabled and has failed"
	}
	return ""
}

// quiet writes the drop-ins of those that are to become active without running anything.
func (g giver) quiet(starts []launch) error {
	for _, s := range starts {
		if !s.quiet {
			continue
		}
		if _, err := durable.Write(paths.At(g.Root, dropin.QuietPath(s.unit)), []byte(dropin.Quiet), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// unquiet also runs after a failure and a signal: the operator is to find his firewalls as they are.
func (g giver) unquiet(ctx context.Context) error {
	swept, err := dropin.SweepQuiet(g.Root)
	if err != nil || !swept {
		return err
	}
	return g.units.Reload(context.WithoutCancel(ctx))
}

func (g giver) start(ctx context.Context, unit string) error {
	if p, err := g.units.Properties(ctx, unit); err != nil || p.ActiveState == "active" {
		return err // by another name, or by one that needs it
	}
	g.Log.Status("starting %s", unit)
	limited, cancel := limit(ctx)
	defer cancel()
	p, err := g.units.Start(limited, unit)
	if err == nil && p.ActiveState == "failed" {
		err = fmt.Errorf("start %s: it has failed (%s)", unit, p.Result)
	}
	if err != nil {
		return fmt.Errorf("%w; see `systemctl status %s`, repair, disable or mask it, and start %s again", err, unit, paths.ResetTarget)
	}
	if !p.Runs() && !p.ConditionResult {
		g.Log.Notice("%s ran before and does not start: a condition of its own is not met", unit)
		return nil
	}
	g.Log.Changed(unit, "started")
	return nil
}

func limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("it did not start in %v", startLimit))
}

// restoreSwap turns on what was on. In the boot in which it was turned off that is each area with its priority, by
// its unit if it has one, which knows more options. In a later one it is what that boot would have turned on.
func (g giver) restoreSwap(ctx context.Context, image *before.Image, restore []before.Entry) error {
	later := false
	for _, e := range restore {
		if e.Kind != before.Swap {
			continue
		}
		if !image.SameBoot(e) {
			later = true
			continue
		}
		if err := g.swapArea(ctx, e); err != nil {
			return err
		}
	}
	if !later {
		return nil
	}
	return g.startSwap(ctx)
}

func (g giver) startSwap(ctx context.Context) error {
	g.Log.Status("turning swap on")
	limited, cancel := limit(ctx)
	defer cancel()
	if _, err := g.units.Start(limited, "swap.target"); err != nil {
		return fmt.Errorf("%w; see `systemctl list-dependencies swap.target`, repair or mask what fails, and start %s again", err, paths.ResetTarget)
	}
	return nil
}

func (g giver) swapArea(ctx context.Context, e before.Entry) error {
	if now, err := swap.Now(g.Root, e); err != nil || !now.Absent {
		return err // a service has turned it on
	}
	if _, err := os.Stat(paths.At(g.Root, e.Object)); errors.Is(err, os.ErrNotExist) {
		g.Log.Notice("swap area %s is gone since and stays off", e.Object)
		return nil
	}
	unit, err := g.swapUnit(ctx, e.Object)
	if err != nil {
		return err
	}
	if unit != "" {
		if err := g.start(ctx, unit); err != nil {
			return err
		}
	}
	on, err := swap.Find(g.Root)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(on, func(c before.Change) bool { return c.Object == e.Object })
	priority := swap.Priority(e)
	if at >= 0 && (strings.HasPrefix(priority, "-") || on[at].Now.Same(e.Before)) {
		return nil
	}
	if at >= 0 { // the priority was given by hand
		if err := g.swapOff(g.Root, e.Object); err != nil {
			return err
		}
	}
	if err := g.swapOn(g.Root, e.Object, priority); err != nil {
		return fmt.Errorf("%w; turn it on, or remove it, and start %s again", err, paths.ResetTarget)
	}
	g.Log.Changed(e.Object, "swap area turned on")
	return nil
}

// swapUnit is the unit that turns area on, "" if it has none.
func (g giver) swapUnit(ctx context.Context, area string) (string, error) {
	units, err := g.units.ListUnits(ctx, "*.swap")
	if err != nil {
		return "", err
	}
	for unit := range units {
		p, err := g.units.Properties(ctx, unit)
		if err != nil {
			return "", err
		}
		if p.LoadState != "loaded" || p.FragmentPath == "" {
			continue
		}
		what, err := g.units.Area(ctx, unit)
		if err != nil {
			return "", err
		}
		if path, err := filepath.EvalSymlinks(paths.At(g.Root, what)); err == nil && path == paths.At(g.Root, area) {
			return unit, nil
		}
	}
	return "", nil
}
