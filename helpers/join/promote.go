package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/tree"
)

// promote makes what the node was built from the applied configuration, and says where the node runs. The
// node stage leaves built.json alone once kubelet has credentials of its own, so this is
// what the running kubelet was built from, whatever the configuration says by now.
func promote(env *stage.Env, root *tree.Root) error {
	built, err := root.ReadFile(paths.Built, 16<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s%s is missing: the node's files are being written anew, start %s again", paths.Tree(env.Slot), paths.Built, paths.Target)
	}
	if err != nil {
		return err
	}
	applied := paths.At(env.Root, paths.Applied(env.Slot))
	sum := sha256.Sum256(built)
	sidecar := []byte(hex.EncodeToString(sum[:]) + "\n")
	if err := forget(applied+".sha256", sidecar); err != nil {
		return err
	}
	for _, file := range []struct {
		path string
		data []byte
	}{{applied, built}, {applied + ".sha256", sidecar}} {
		if err := durable.SweepFor(file.path); err != nil { // what a killed promotion left has the token in it
			return err
		}
		changed, err := durable.Write(file.path, file.data, 0o600)
		if err != nil {
			return err
		}
		if changed {
			env.Log.Changed(file.path, "written from "+paths.Tree(env.Slot)+paths.Built)
		}
	}
	return activate(env)
}

// forget removes a checksum of something else: a wrong one is an error to its readers, none is not.
func forget(path string, want []byte) error {
	have, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(have) == string(want) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = durable.Remove(path)
	return err
}

// activate says that the node runs in the slot. There is one marker: the other slot's is renamed.
func activate(env *stage.Env) error {
	marker := paths.At(env.Root, paths.Active(env.Slot))
	for _, slot := range paths.Slots() {
		other := paths.At(env.Root, paths.Active(slot))
		if _, err := os.Lstat(other); slot == env.Slot || err != nil {
			continue
		}
		// Commit point.
		if err := durable.Rename(other, marker); err != nil {
			return err
		}
		env.Log.Changed(marker, "renamed from active."+slot)
		return nil
	}
	// Commit point.
	changed, err := durable.Mark(marker)
	if changed {
		env.Log.Changed(marker, "written")
	}
	return err
}
