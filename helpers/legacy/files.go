package main

import (
	"context"

	"unbounded/internal/durable"
	"unbounded/internal/legacy"
	"unbounded/internal/paths"
	"unbounded/internal/removal"
	"unbounded/internal/stage"
	"unbounded/internal/unitfile"
)

func files(ctx context.Context, env *stage.Env) error {
	own, foreign, err := legacy.Files(env.Root)
	if err != nil {
		return err
	}
	for _, path := range own {
		removed, err := durable.Remove(paths.At(env.Root, path))
		if err != nil {
			return err
		}
		if removed {
			env.Log.Changed(path, "removed")
		}
	}
	for _, path := range foreign {
		env.Log.Notice("%s stays: it does not prove to be the public agent's", path)
	}
	trees, err := legacy.Trees(env.Root)
	if err != nil {
		return err
	}
	for _, dir := range trees {
		removed, err := removal.Tree(ctx, paths.At(env.Root, dir))
		if err != nil {
			return err
		}
		if removed {
			env.Log.Changed(dir, "removed")
		}
	}
	for _, dir := range legacy.Folders() {
		if err := unitfile.RemoveEmpty(env.Root, dir); err != nil {
			return err
		}
	}
	return nil
}
