// Package unitfile takes units off a host: they are stopped and disabled, and their files are gone.
package unitfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"unbounded/internal/durable"
	"unbounded/internal/journal"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

// runtimeDir is where systemd and its tools put units for this boot.
const runtimeDir = "/run/systemd/system"

// Manager is the service manager of the host.
type Manager interface {
	Properties(ctx context.Context, unit string) (systemd.Properties, error)
	Stop(ctx context.Context, unit string) (systemd.Properties, error)
	Disable(ctx context.Context, unit string) (bool, error)
	ResetFailed(ctx context.Context, unit string) error
	Reload(ctx context.Context) error
}

// Retire stops units in their order, disables them, and removes their files, drop-ins and links below root, all in
// /etc and /run: files of packages stay. What it changes it logs. Units that are not there are done; a second call changes nothing.
// A bare template (x@.service) has only files. Systemd is reloaded once, if it has to be.
func Retire(ctx context.Context, root string, manager Manager, log *journal.Log, units ...string) error {
	if err := stop(ctx, manager, log, units); err != nil {
		return err
	}
	changed := false
	for _, unit := range units {
		disabled, err := manager.Disable(ctx, unit)
		if err != nil {
			return fmt.Errorf("keep %s from starting at boot: %w", unit, err)
		}
		if disabled {
			log.Changed(unit, "disabled")
		}
		removed, err := remove(root, log, unit)
		changed = changed || disabled || removed
		if err != nil {
			return err
		}
	}
	return settle(ctx, root, manager, log, units, changed)
}

func stop(ctx context.Context, manager Manager, log *journal.Log, units []string) error {
	for _, unit := range units {
		if template(unit) {
			continue
		}
		now, err := manager.Properties(ctx, unit)
		if err != nil {
			return err
		}
		if !now.Runs() {
			continue
		}
		log.Status("stopping %s", unit)
		if now, err = manager.Stop(ctx, unit); err != nil {
			return fmt.Errorf("%w; see `systemctl status %s`", err, unit)
		}
		if now.Runs() {
			return fmt.Errorf("%s runs although it was stopped: see `systemctl status %s`", unit, unit)
		}
		log.Changed(unit, "stopped")
	}
	return nil
}

// template tells whether unit is a template without an instance, which systemd cannot load.
func template(unit string) bool { return strings.Contains(unit, "@.") }

// remove removes what makes unit start before the unit itself.
func remove(root string, log *journal.Log, unit string) (changed bool, err error) {
	for _, dir := range []string{paths.SystemdDir, runtimeDir} {
		found, err := filesOf(root, dir, unit)
		if err != nil {
			return changed, err
		}
		for _, path := range found {
			removed, err := durable.Remove(paths.At(root, path))
			if err != nil {
				return changed, err
			}
			if removed {
				log.Changed(path, "removed")
				changed = true
			}
			if filepath.Dir(path) == dir {
				continue
			}
			if err := RemoveEmpty(root, filepath.Dir(path)); err != nil {
				return changed, err
			}
		}
	}
	return changed, nil
}

// filesOf are the links to unit that enable it, its drop-ins, and its file, of those in dir.
func filesOf(root, dir, unit string) ([]string, error) {
	var found []string
	for _, pattern := range []string{"*.wants/" + unit, "*.requires/" + unit, "*.upholds/" + unit, unit + ".d/*", unit} {
		// No name of a unit of ours has a character that is special in a pattern.
		names, err := filepath.Glob(paths.At(root, dir+"/"+pattern))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			found = append(found, strings.TrimPrefix(name, strings.TrimSuffix(root, "/")))
		}
	}
	return found, nil
}

// RemoveEmpty removes the folder dir of the host below root if there is nothing in it.
func RemoveEmpty(root, dir string) error {
	_, err := durable.Remove(paths.At(root, dir))
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EBUSY) { // EBUSY: a mount of the host's owner
		return nil
	}
	return err
}

// settle has systemd see what was removed, also by an earlier run that was killed, and forget failures.
func settle(ctx context.Context, root string, manager Manager, log *journal.Log, units []string, changed bool) error {
	units = slices.DeleteFunc(slices.Clone(units), template)
	for _, unit := range units {
		p, err := manager.Properties(ctx, unit)
		if err != nil {
			return err
		}
		if p.LoadState == "loaded" && p.FragmentPath != "" {
			_, err := os.Lstat(paths.At(root, p.FragmentPath))
			changed = changed || errors.Is(err, fs.ErrNotExist)
		}
	}
	if changed {
		if err := manager.Reload(ctx); err != nil {
			return err
		}
	}
	for _, unit := range units {
		p, err := manager.Properties(ctx, unit)
		switch {
		case err != nil:
			return err
		case p.Runs():
			return fmt.Errorf("%s was started while it was taken away: see `systemctl status %s`", unit, unit)
		case p.ActiveState == "failed":
			systemd.Forget(ctx, manager, log.Warn, unit)
		}
		if p.LoadState == "loaded" && p.FragmentPath != "" {
			log.Notice("%s stays: it is not of this installation but of a package; it is stopped and disabled", p.FragmentPath)
		}
	}
	return nil
}
