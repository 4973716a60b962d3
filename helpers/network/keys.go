package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"unbounded/internal/before"
	"unbounded/internal/overlay"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
)

// keysMade is the name that says that reset has found keys of the node's.
const keysMade = "keys"

// keys are those of the overlay network. The host's own, if it had any, are known by their path only.
func keys() [2]string { return [2]string{"/etc/wireguard/server.priv", "/etc/wireguard/server.pub"} }

// presence is the state of the file at path without what is in it: a key is not copied.
func presence(root, path string) (before.State, error) {
	info, err := os.Lstat(paths.At(root, path))
	switch {
	case err == nil:
		return before.State{Mode: info.Mode()}, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return before.Read(root, path)
	}
	return before.State{}, err
}

// removeKeys removes the keys that were not there before, and the folder if it was not. Without a note they may be the
// operator's. That the node has made keys is noted first: killed halfway, the next run removes a folder which is empty by
// then, and which otherwise is somebody else's.
func removeKeys(env *stage.Env, image *before.Image, log overlay.Log) error {
	var made []before.Entry
	there := map[string]bool{}
	for _, key := range keys() {
		state, err := presence(env.Root, key)
		if err != nil {
			return err
		}
		entries := image.Entries()
		at := slices.IndexFunc(entries, func(e before.Entry) bool { return e.Kind == before.File && e.Object == key })
		switch {
		case at >= 0 && entries[at].Before.Absent:
			made = append(made, entries[at])
			if there[key] = !state.Absent; there[key] {
				image.Keep(before.Change{Kind: name, Object: keysMade, Now: before.Text("found"), Want: before.Text("found")})
			}
		case state.Absent:
		case at < 0:
			log.Left(key + " may be the operator's")
		default:
			log.Left(key + " was there before the node")
		}
	}
	if !image.Has(name, keysMade) {
		return nil
	}
	if err := image.Save(); err != nil {
		return err
	}
	for _, e := range made {
		if err := before.RestoreFile(env.Root, e); err != nil {
			return fmt.Errorf("remove %s: %w", e.Object, err)
		}
		if there[e.Object] {
			log.Removed(e.Object)
		}
	}
	return nil
}
