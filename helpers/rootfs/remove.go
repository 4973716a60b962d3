package main

import (
	"context"

	"unbounded/internal/mounts"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
	"unbounded/internal/teardown"
)

const proc = "/proc"

// remove removes the trees of both slots and what was fetched for them.
func remove(ctx context.Context, env *stage.Env, manager *systemd.Manager) error {
	if err := mounts.Shown(proc); err != nil {
		return err
	}
	return (&teardown.Trees{Root: env.Root, Slots: manager, Log: env.Log, Proc: proc}).Remove(ctx)
}
