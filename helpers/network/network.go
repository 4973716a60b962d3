package main

import (
	"context"
	"fmt"

	"unbounded/internal/before"
	"unbounded/internal/overlay"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

const (
	concern = "network"
	// name is the kind of what was there before the node, of which only the name matters.
	name before.Kind = "name"
	// done is the name that says that reset has removed what is the node's.
	done = "removed"
)

// slots answers whether a slot runs.
type slots interface {
	SlotRuns(ctx context.Context, slot string) (bool, error)
}

func converge(ctx context.Context, env *stage.Env) error {
	image, err := before.Load(env.Root, concern)
	if err != nil {
		return err
	}
	if noted(image) && !image.Has(name, done) {
		return nil
	}
	running, err := ask(ctx)
	if err != nil {
		return err
	}
	if running != "" {
		env.Log.Info("%s runs: what the host had before cannot be told any more", running)
		return nil
	}
	here, err := nodeWasHere(env)
	if err != nil {
		return err
	}
	if here {
		env.Log.Info("a node was on this host before there was a note: what the host had before it cannot be told")
		return nil
	}
	n, err := overlay.Dial(0, overlay.Public())
	if err != nil {
		return err
	}
	defer n.Close()
	return note(env, image, n)
}

// noted tells whether there is a note; it has entries even of a host with nothing in it.
func noted(image *before.Image) bool { return len(image.Entries()) > 0 }

// note writes what there is into image, in place of what an earlier installation noted.
func note(env *stage.Env, image *before.Image, n *overlay.Network) error {
	names, err := n.Names()
	if err != nil {
		return err
	}
	legacy, err := overlay.Legacy(env.Root)
	if err != nil {
		return err
	}
	if err := image.Discard(); err != nil {
		return err
	}
	for _, key := range keys() {
		state, err := presence(env.Root, key)
		if err != nil {
			return err
		}
		image.Keep(before.Change{Kind: before.File, Object: key, Now: state, Want: state})
	}
	for _, object := range append(names, legacy...) {
		image.Keep(before.Change{Kind: name, Object: object, Now: before.Text("present"), Want: before.Text("present")})
		env.Log.Notice("%s is there already: it is not the node's, and reset will leave it", object)
	}
	return image.Save() // Commit point.
}

// ask is the slot that runs, "" if none does. Only PID 1 is asked.
func ask(ctx context.Context) (string, error) {
	manager, err := systemd.Connect(ctx)
	if err != nil {
		return "", fmt.Errorf("cannot tell whether a machine runs: %w", err)
	}
	defer manager.Close()
	return runs(ctx, manager)
}

func runs(ctx context.Context, host slots) (string, error) {
	for _, slot := range paths.Slots() {
		running, err := host.SlotRuns(ctx, slot)
		if err != nil {
			return "", fmt.Errorf("cannot tell whether a machine runs: %w", err)
		}
		if running {
			return slot, nil
		}
	}
	return "", nil
}
