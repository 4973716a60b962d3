package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"unbounded/internal/before"
	"unbounded/internal/nft"
	"unbounded/internal/overlay"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
)

func remove(ctx context.Context, env *stage.Env) error {
	running, err := ask(ctx)
	if err != nil {
		return fmt.Errorf("%w: nothing was removed", err)
	}
	if running != "" {
		return fmt.Errorf("%s runs, and the network is the node's: stop it with `systemctl stop %s`", running, paths.MachineUnit(running))
	}
	n, err := overlay.Dial(0, overlay.Public())
	if err != nil {
		return err
	}
	defer n.Close()
	return giveBack(env, n)
}

// giveBack removes what is the node's from n.
func giveBack(env *stage.Env, n *overlay.Network) error {
	image, err := before.Load(env.Root, concern)
	if err != nil {
		return err
	}
	if image.Has(name, done) {
		return nil // what has one of the names now was given back since
	}
	flushed, err := before.Load(env.Root, "nftables")
	if err != nil {
		return err
	}
	if !noted(image) {
		here, err := nodeWasHere(env)
		if err != nil || !here {
			return err
		}
		env.Log.Notice("nobody noted what the host's network was like before the node: what has its names and kinds is removed")
	}
	log := overlay.Log{
		Removed: func(object string) { env.Log.Changed(object, "removed") },
		Left:    once(func(line string) { env.Log.Notice("%s, and is left", line) }),
	}
	if err := n.Remove(was(image, flushed, log), log); err != nil {
		return err
	}
	if err := removeKeys(env, image, log); err != nil {
		return err
	}
	legacy, err := overlay.Legacy(env.Root)
	if err != nil {
		return err
	}
	for _, table := range legacy {
		if !image.Has(name, table) {
			log.Left(table + " may have rules of the node, which are gone at the next boot")
		}
	}
	image.Keep(before.Change{Kind: name, Object: done, Now: before.Text("done"), Want: before.Text("done")})
	return image.Save() // Commit point.
}

// was tells what image says, and says what is left because of it.
func was(image, flushed *before.Image, log overlay.Log) overlay.Before {
	return overlay.Before{
		Known: noted(image),
		Has:   func(object string) bool { return image.Has(name, object) },
		Part: func(part nft.Part) bool {
			// What was in a table that was flushed after it was noted went with it: the table is to
			// be put back whole, and what is in it now is the node's.
			if flushed.Has(before.Ruleset, part.Of()) || !image.Has(name, part.String()) {
				return false
			}
			log.Left(part.String() + " was there before the node")
			return true
		},
	}
}

// once passes every line on one time.
func once(say func(string)) func(string) {
	said := map[string]bool{}
	return func(line string) {
		if !said[line] {
			said[line] = true
			say(line)
		}
	}
}

// nodeWasHere tells whether a host without a note may have had a node. Of an installation of ours it must have
// joined: before the first machine runs the note is made. Of others a tree is enough.
func nodeWasHere(env *stage.Env) (bool, error) {
	var signs []string
	for _, slot := range paths.Slots() {
		signs = append(signs, paths.Applied(slot), paths.Active(slot))
		if env.Record.Foreign() {
			signs = append(signs, paths.Tree(slot), paths.Nspawn(slot), paths.DropInFile(slot))
		}
	}
	for _, path := range signs {
		_, err := os.Lstat(paths.At(env.Root, path))
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return false, err
		}
	}
	return false, nil
}
