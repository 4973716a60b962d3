package main

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"unbounded/internal/durable"
	"unbounded/internal/nspawn"
	"unbounded/internal/paths"
	"unbounded/internal/resolv"
	"unbounded/internal/stage"
	"unbounded/internal/tree"
)

// refresh brings what may have changed since the node stage ran to what the host has now: the
// devices in the machine's settings, and the resolvers that pods get. Without settings, or without a
// file of resolvers, there is nothing to do. A failure is no stage's: the machine starts all the same.
func refresh(_ context.Context, env *stage.Env) error {
	if err := errors.Join(refreshDevices(env), refreshResolvers(env)); err != nil {
		env.Log.Warn("refresh what the machine is given: %v, ignoring", err)
	}
	return nil
}

func refreshDevices(env *stage.Env) error {
	path := paths.At(env.Root, paths.Nspawn(env.Slot))
	settings, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	devices, err := nspawn.Discover(env.Root)
	if err != nil {
		return err
	}
	now := nspawn.Refresh(string(settings), devices, func(node string) bool { return nspawn.Exists(env.Root, node) })
	changed, err := durable.Write(path, []byte(now), 0o644)
	if changed && err == nil {
		env.Log.Changed(paths.Nspawn(env.Slot), "written: the host has other devices now")
	}
	return err
}

func refreshResolvers(env *stage.Env) error {
	root, err := tree.Open(paths.At(env.Root, paths.Tree(env.Slot)))
	if err != nil {
		return err
	}
	defer root.Close() // synced by itself
	if _, err := root.Lstat(resolv.Pods); errors.Is(err, fs.ErrNotExist) {
		return nil // pods get what nspawn copies
	}
	names, err := resolv.Read(env.Root)
	if err != nil {
		return nil // what pods have is better than nothing
	}
	content := names.Pods
	if names.File == resolv.Host {
		content = names.Machine
	}
	if names.Notice != "" && content == names.Machine {
		return nil // the host has none at the moment
	}
	changed, err := root.Write(resolv.Pods, []byte(content), 0o644)
	if changed && err == nil {
		env.Log.Changed(paths.Tree(env.Slot)+resolv.Pods, "written: the host has other resolvers now")
	}
	return err
}
