package main

import (
	"context"
	"fmt"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
)

// remove takes away what says in which slot the node runs and what it was built from, the tokens in it included.
// The marker goes last: a machine without it does not start.
func remove(_ context.Context, env *stage.Env) error {
	for _, slot := range paths.Slots() {
		applied := paths.Applied(slot)
		for _, path := range []string{applied + ".sha256", applied, paths.Active(slot)} {
			if err := durable.SweepFor(paths.At(env.Root, path)); err != nil {
				return fmt.Errorf("remove what was left of writing %s: %w", path, err)
			}
			removed, err := durable.Remove(paths.At(env.Root, path))
			if err != nil {
				return err
			}
			if removed {
				env.Log.Changed(path, "removed")
			}
		}
	}
	return nil
}
