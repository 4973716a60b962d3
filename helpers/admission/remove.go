package main

import (
	"context"
	"fmt"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
)

// remove takes away what admission left for the stages of an attempt, and the notes of this boot. The record itself is
// the last thing to go, and the reset's.
func remove(_ context.Context, env *stage.Env) error {
	for _, path := range []string{paths.Complete, paths.Admitted, paths.LastFailure, paths.RunSlot, paths.Restart} {
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
