package main

import (
	"context"

	"unbounded/internal/before"
	"unbounded/internal/journal"
	"unbounded/internal/paths"
	"unbounded/internal/slot"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

func remove(ctx context.Context, env *stage.Env) error {
	host, err := systemd.Connect(ctx)
	if err != nil {
		return err
	}
	defer host.Close()
	for _, name := range paths.Slots() {
		log := env.Log.With(journal.FieldMachine, name)
		if err := slot.Remove(env.Root, name, host, log).Run(ctx); err != nil {
			return err
		}
	}
	return restore(ctx, env, host.Reload)
}

// restore gives back what converge has changed of the host's own: whether machines.target starts at boot.
func restore(ctx context.Context, env *stage.Env, reload func(context.Context) error) error {
	image, err := before.Load(env.Root, "machine")
	if err != nil {
		return err
	}
	ours, theirs, err := image.Decide(func(e before.Entry) (before.State, error) { return before.Read(env.Root, e.Object) })
	if err != nil {
		return err
	}
	for _, e := range theirs {
		env.Log.Notice("%s was changed since the installation, leaving it", e.Object)
	}
	for _, e := range ours {
		if err := before.RestoreFile(env.Root, e); err != nil {
			return err
		}
		env.Log.Changed(e.Object, "put back as it was")
	}
	if len(image.Entries()) > 0 { // a run that was killed may have put the link back
		if err := reload(ctx); err != nil {
			return err
		}
	}
	return image.Discard()
}
