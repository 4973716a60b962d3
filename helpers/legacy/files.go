package main

import (
	"errors"
	"io/fs"
	"os"

	"unbounded/internal/durable"
	"unbounded/internal/legacy"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/tree"
	"unbounded/internal/unitfile"
)

func files(env *stage.Env) error {
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
		if _, err := os.Lstat(paths.At(env.Root, dir)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := tree.Remove(paths.At(env.Root, dir)); err != nil {
			return err
		}
		env.Log.Changed(dir, "removed")
	}
	for _, dir := range legacy.Folders() {
		if err := unitfile.RemoveEmpty(env.Root, dir); err != nil {
			return err
		}
	}
	return nil
}
