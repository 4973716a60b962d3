package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"unbounded/internal/exit"
	"unbounded/internal/membership"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
	"unbounded/internal/tree"
)

// join is the stage; limit is how long it waits for the kubelet.
func join(limit time.Duration) stage.Func {
	return func(ctx context.Context, env *stage.Env) error {
		if env.Slot == "" {
			return exit.As(exit.Usage, errors.New("usage: unbounded-join converge kube1|kube2"))
		}
		root, err := tree.Open(paths.At(env.Root, paths.Tree(env.Slot)))
		if err != nil {
			return fmt.Errorf("open tree of %s: %w", env.Slot, err)
		}
		defer root.Close()
		manager, err := systemd.Connect(ctx)
		if err != nil {
			return err
		}
		defer manager.Close()
		wait := membership.New(env.Slot, env.Config.NodeName, root, manager, env.Log)
		if err := wait.Joined(ctx, limit); err != nil {
			return err
		}
		env.Log.Info("node %s has joined", wait.Node())
		return promote(env, root)
	}
}
