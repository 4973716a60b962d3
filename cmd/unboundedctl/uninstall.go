package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/lock"
	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/internal/systemd"
)

// uninstall removes what an installer placed, and the configuration.
func (p *program) uninstall(ctx context.Context, options options) error {
	if err := p.asRoot(); err != nil {
		return err
	}
	if err := p.nobodys(); err != nil {
		return err
	}
	placed, err := p.placed(options)
	if err != nil {
		return err
	}
	name, err := p.hostname()
	if err != nil {
		return err
	}
	err = p.confirm(ctx, options.yes, fmt.Sprintf(`This takes Unbounded off the host %s.

  removed  %d units, the programs below %s, and this one
%s`, name, len(placed.units), placed.prefix, placed.aboutConfig()), "Uninstall from "+name+"?")
	if err != nil {
		return err
	}
	held, err := lock.Take(p.root, lock.Exclusive)
	if err != nil {
		if _, ok := errors.AsType[*lock.HeldError](err); ok {
			return exit.As(exit.Held, err)
		}
		return err
	}
	if err := p.nobodys(); err != nil { // since the question was asked
		return errors.Join(err, held.Release())
	}
	// An interruption would leave units that systemd still knows.
	return errors.Join(p.takeOff(context.WithoutCancel(ctx), placed), held.Release())
}

// nobodys refuses while there is an install record, whatever it says.
func (p *program) nobodys() error {
	_, err := record.Open(p.root).Load()
	if errors.Is(err, record.ErrNone) {
		return nil
	}
	if err == nil || errors.Is(err, record.ErrInvalid) {
		return exit.As(exit.Refused, &hinted{
			errors.New("this host has an install record: reset it first, for without the programs nothing can"), []string{again},
		})
	}
	return err
}

// takeOff removes units first, so that nothing is started half removed; this program and the list of what is to be
// removed go last, so that it can be run again until then.
func (p *program) takeOff(ctx context.Context, i installation) error {
	manager, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer manager.Close()
	if err := p.quiet(ctx, manager); err != nil {
		return err
	}
	if _, err := manager.Disable(ctx, paths.BootUnit); err != nil {
		return err
	}
	removed, err := p.removeAll(i.units)
	if err != nil {
		return err
	}
	if err := manager.Reload(ctx); err != nil {
		return err
	}
	p.say("units removed: %d\n", removed)
	if removed, err = p.removeAll(i.config); err != nil {
		return err
	}
	p.say("configuration files removed: %d\n", removed)
	removed, err = p.removeAll(slices.Concat(i.rest, []string{i.self, filepath.Join(i.prefix, paths.Manifest)}))
	if err != nil {
		return err
	}
	p.say("programs and documents removed: %d, this program included\n", removed)
	return p.leave(i)
}

// failedLimit is how long quiet waits for what says why an attempt failed: it ends by itself.
const failedLimit = 30 * time.Second

// quiet refuses while a unit of ours runs, and has systemd forget those that failed.
func (p *program) quiet(ctx context.Context, manager manager) error {
	active, err := p.active(ctx, manager)
	if err == nil && slices.Equal(active, []string{paths.FailedUnit}) {
		limited, end := context.WithTimeout(ctx, failedLimit)
		_, err = manager.Until(limited, paths.FailedUnit, func(unit systemd.Properties) bool {
			return unit.ActiveState == "inactive" || unit.ActiveState == "failed"
		})
		if end(); err == nil || limited.Err() != nil {
			active, err = p.active(ctx, manager)
		}
	}
	if err != nil || len(active) == 0 {
		return err
	}
	list := strings.Join(active, " ")
	return exit.As(exit.Refused, &hinted{fmt.Errorf("still active: %s", list), []string{"systemctl stop " + list}})
}

// active are the units of ours that run, sorted. It has systemd forget those that failed.
func (p *program) active(ctx context.Context, manager manager) ([]string, error) {
	loaded, err := manager.ListUnits(ctx, "unbounded-*.service", "unbounded-*.target")
	if err != nil {
		return nil, err
	}
	var active []string
	for name, state := range loaded {
		switch state {
		case "inactive":
		case "failed":
			systemd.Forget(ctx, manager, func(format string, args ...any) { p.complain(format+"\n", args...) }, name)
		default:
			active = append(active, name)
		}
	}
	slices.Sort(active)
	return active, nil
}

// removeAll removes files and links, never folders, and counts those that were there.
func (p *program) removeAll(files []string) (removed int, err error) {
	for _, path := range files {
		info, err := os.Lstat(paths.At(p.root, path))
		if err == nil && info.IsDir() {
			return removed, fmt.Errorf("remove %s: it is a folder, and a file was installed there", path)
		}
		was, err := durable.Remove(paths.At(p.root, path))
		if err != nil {
			return removed, err
		}
		if was {
			removed++
		}
	}
	return removed, nil
}

// leave removes folders of ours that are empty, and says what others have put there.
func (p *program) leave(i installation) error {
	for _, dir := range folders(i) {
		err := os.Remove(paths.At(p.root, dir))
		if err == nil {
			err = durable.SyncDir(paths.At(p.root, filepath.Dir(dir)))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) { // ENOTEMPTY is ErrExist
			return err
		}
	}
	for _, dir := range []string{i.prefix, paths.ConfigDir} {
		err := filepath.WalkDir(paths.At(p.root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				p.say("kept: %s\n", "/"+strings.TrimPrefix(strings.TrimPrefix(path, p.root), "/"))
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
