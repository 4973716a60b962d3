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
	"syscall"

	"unbounded/internal/admission"
	"unbounded/internal/durable"
	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

func release(ctx context.Context, env *stage.Env) error {
	manager, err := systemd.Connect(ctx)
	if err != nil {
		return err
	}
	defer manager.Close()
	return giveBack(ctx, env, slots{manager})
}

// slots asks PID 1 alone: a machined that is masked or fails has no say in whether a host is clean, and
// what it knew of our machines was forgotten when they were stopped.
type slots struct{ *systemd.Manager }

// Registered is for admission, which trusts nobody.
func (s slots) Registered(ctx context.Context, slot string) (bool, error) {
	registered, err := s.Manager.Registered(ctx, slot)
	if err != nil {
		return false, nil //nolint:nilerr // see slots
	}
	return registered, nil
}

const networkImage = paths.Before + "/network.json"

// giveBack ends the installation: after it the host is nobody's.
func giveBack(ctx context.Context, env *stage.Env, host admission.Slots) error {
	if err := clean(ctx, env.Root, host); err != nil {
		return err
	}
	env.Log.Status("waiting for the disks")
	for _, path := range []string{"/etc", paths.Machines, paths.State, "/usr/local"} {
		if err := durable.SyncFS(paths.At(env.Root, path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("sync the file system of %s: %w", path, err)
		}
	}
	// The note of whose the network is outlives the stage that uses it: without it that stage, run again after a later one
	// has failed, could not tell what the host has got back from what the node had.
	if _, err := durable.Remove(paths.At(env.Root, networkImage)); err != nil {
		return err
	}
	// Commit point.
	if err := record.Open(env.Root).Remove(ctx); err != nil {
		return err
	}
	env.Log.Changed(paths.Record, "removed: this host is nobody's")
	return tidy(env)
}

// clean is nil if nothing is left of the installation that admission would find, or that says how the host was.
func clean(ctx context.Context, root string, host admission.Slots) error {
	found, err := admission.Inspect(ctx, root, host)
	if err != nil {
		return fmt.Errorf("cannot tell whether this host is clean: %w", err)
	}
	images, err := filepath.Glob(paths.At(root, paths.Before) + "/*.json")
	if err != nil {
		return err
	}
	dropIns, err := filepath.Glob(paths.At(root, paths.ConditionDropIn("*")))
	if err != nil {
		return err
	}
	images = slices.DeleteFunc(images, func(path string) bool { return path == paths.At(root, networkImage) })
	found = slices.Concat(found, images, dropIns)
	if len(found) > 0 {
		return fmt.Errorf("the host is not clean: there still is %s; go on with `systemctl start %s`", strings.Join(found, ", "), paths.ResetTarget)
	}
	return nil
}

// tidy removes the folders that held the record, if nobody has put anything there. It comes after the
// commit point, and what it leaves is nobody's installation.
func tidy(env *stage.Env) error {
	for _, dir := range []string{paths.Before, paths.State, filepath.Dir(paths.State)} {
		err := os.Remove(paths.At(env.Root, dir))
		switch {
		case err == nil:
			if err := durable.SyncDir(filepath.Dir(paths.At(env.Root, dir))); err != nil {
				return err
			}
		case errors.Is(err, fs.ErrNotExist):
		case errors.Is(err, syscall.ENOTEMPTY):
			env.Log.Notice("%s is not empty and stays", dir)
			return nil
		case errors.Is(err, syscall.EBUSY): // a file system of the host's owner is mounted there
			return nil
		default:
			return err
		}
	}
	return nil
}
