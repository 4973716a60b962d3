package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
)

// remove takes away what admission left for the stages of an attempt, and the notes of this boot. The record itself is
// the last thing to go, and the reset's.
func remove(_ context.Context, env *stage.Env) error {
	all := []string{paths.Complete, paths.Admitted, paths.LastFailure}
	// Killed stages leave marks in these that no other stage of a reset knows.
	for _, dir := range []string{paths.RunSlot, paths.Restart} {
		marks, err := list(paths.At(env.Root, dir))
		if err != nil {
			return err
		}
		for _, mark := range marks {
			all = append(all, dir+"/"+mark.Name())
		}
		all = append(all, dir)
	}
	for _, path := range all {
		removed, err := durable.Remove(paths.At(env.Root, path))
		if err != nil {
			return err
		}
		if removed {
			env.Log.Changed(path, "removed")
		}
	}
	// What killed writers left, tokens in it included. Those who would write are refused.
	for _, dir := range []string{paths.Run, paths.State, paths.Before, paths.ConfigDir} {
		if err := durable.Sweep(paths.At(env.Root, dir)); err != nil {
			return fmt.Errorf("remove what was left of writing into %s: %w", dir, err)
		}
	}
	return nil
}

// list are the entries of a folder. What a link leads to is somebody else's.
func list(dir string) ([]os.DirEntry, error) {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return os.ReadDir(dir)
}
