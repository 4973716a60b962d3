package main

import (
	"context"
	"fmt"
	"os"

	"unbounded/internal/durable"
	"unbounded/internal/legacy"
	"unbounded/internal/paths"
	"unbounded/internal/removal"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
	"unbounded/internal/unitfile"
)

func remove(ctx context.Context, env *stage.Env) error {
	manager, err := systemd.Connect(ctx)
	if err != nil {
		return err
	}
	defer manager.Close()
	return retire(ctx, env, manager)
}

// retire takes away what starts the daemon, or an installation, before it stops the daemon: one that fails when it is
// stopped would have systemd start recovery at once, and that would start it again. It takes two reloads.
func retire(ctx context.Context, env *stage.Env, manager unitfile.Manager) error {
	for _, units := range [][]string{{legacy.BootstrapUnit, paths.RecoveryUnit}, {paths.DaemonUnit}} {
		if err := unitfile.Retire(ctx, env.Root, manager, env.Log, units...); err != nil {
			return err
		}
	}
	for _, path := range legacy.RecoveryScripts() {
		if err := removeFile(env, path); err != nil {
			return err
		}
	}
	return nil
}

// forget removes what the daemon reports with.
func forget(ctx context.Context, env *stage.Env) error {
	if err := removeFile(env, paths.ConfigDir+"/agent-upgrade-signal"); err != nil {
		return err
	}
	const credentials = paths.ConfigDir + "/daemon-controller"
	entries, err := os.ReadDir(paths.At(env.Root, credentials))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("credentials of the daemon: %w; remove %s and reset again", err, credentials)
	}
	if _, err := removal.Tree(ctx, paths.At(env.Root, credentials)); err != nil {
		return err
	}
	env.Log.Changed(credentials, fmt.Sprintf("removed, with %d files", len(entries)))
	return nil
}

func removeFile(env *stage.Env, path string) error {
	removed, err := durable.Remove(paths.At(env.Root, path))
	if removed {
		env.Log.Changed(path, "removed")
	}
	return err
}
