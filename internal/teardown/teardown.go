// Package teardown removes the trees of machines and what was fetched for them.
//
// Nothing is changed while a slot runs, is registered, or its tree is on a mount or in use. What is mounted below a
// tree is unmounted, and a tree gets another name before anything in it is removed; so one with its own name
// is whole, and what a run that was killed has left the next finds, by its name.
package teardown

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"unbounded/internal/durable"
	"unbounded/internal/journal"
	"unbounded/internal/mounts"
	"unbounded/internal/paths"
	"unbounded/internal/removal"
	"unbounded/internal/systemd"
	"unbounded/internal/tree"
)

// Slots answers what runs. PID 1 is the authority, machined only confirms.
type Slots interface {
	SlotRuns(ctx context.Context, slot string) (bool, error)
	Registered(ctx context.Context, slot string) (bool, error)
}

// Trees removes the trees of both slots and what was fetched for them.
type Trees struct {
	Root  string
	Slots Slots
	Log   *journal.Log
	Proc  string // "/proc"
}

const (
	journals = "/var/log/journal"
	runLocks = "/run/systemd/nspawn/locks"
)

// stores are the folders of what was fetched: ours, and those of the public agent.
func stores() []string {
	return []string{paths.Content, "/var/lib/unbounded/container-images", "/var/lib/unbounded/offline-artifacts"}
}

// Remove removes all, or says what is in its way.
func (r *Trees) Remove(ctx context.Context) error {
	for _, slot := range paths.Slots() {
		if err := r.idle(ctx, slot); err != nil {
			return err
		}
	}
	if err := r.trees(ctx); err != nil {
		return err
	}
	if err := r.unlinkJournals(); err != nil {
		return err
	}
	for _, store := range stores() {
		if err := r.remove(ctx, store, paths.At(r.Root, store)); err != nil {
			return err
		}
	}
	return nil
}

// idle fails unless the slot does not run. A machined that cannot tell is worked around: PID 1 has the last word.
func (r *Trees) idle(ctx context.Context, slot string) error {
	runs, err := r.Slots.SlotRuns(ctx, slot)
	if err != nil {
		return err
	}
	if runs {
		return fmt.Errorf("machine %s runs: stop it with `systemctl stop %s`, then start %s again", slot, paths.MachineUnit(slot), paths.ResetTarget)
	}
	registered, err := r.Slots.Registered(ctx, slot)
	switch {
	case errors.Is(err, systemd.ErrCannotTell):
		r.Log.Notice("%v; PID 1 says that it does not run: going on", err)
	case err != nil:
		return err
	case registered:
		return fmt.Errorf("machine %s is registered: end it with `machinectl terminate %s`, then start %s again", slot, slot, paths.ResetTarget)
	}
	return nil
}

// place is where a tree is, or part of one.
type place struct {
	name string // as the host knows it
	real string // below the root, without links
}

// places are those of slot: the tree, the one that is being built, and the one that is being removed.
func (r *Trees) places(machines, slot string) [3]place {
	of := func(name string) place { return place{name, filepath.Join(machines, filepath.Base(name))} }
	return [3]place{of(paths.Tree(slot)), of(paths.Partial(slot)), of(paths.Removing(slot))}
}

func (r *Trees) trees(ctx context.Context) (err error) {
	machines, err := filepath.EvalSymlinks(paths.At(r.Root, paths.Machines))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var all []string
	for _, slot := range paths.Slots() {
		for _, p := range r.places(machines, slot) {
			all = append(all, p.real)
		}
	}
	var locks claims
	defer func() { err = errors.Join(err, locks.release()) }()
	for _, slot := range paths.Slots() {
		if err := r.claim(&locks, machines, slot); err != nil {
			return err
		}
	}
	table := mounts.Table{Proc: r.Proc, Log: r.Log}
	if err := r.refuseMounted(all); err != nil {
		return err
	}
	if err := table.UnmountBelow(ctx, all...); err != nil {
		return err
	}
	if err := r.unlink(locks); err != nil {
		return err
	}
	for _, slot := range paths.Slots() {
		if err := r.tree(ctx, machines, slot); err != nil {
			return err
		}
	}
	return nil
}

// refuseMounted fails when a tree is on a mount of its own. That is the operator's to unmount: we make no such tree.
func (r *Trees) refuseMounted(places []string) error {
	all, err := mounts.Read(r.Proc)
	if err != nil {
		return err
	}
	for _, path := range places {
		if on := mounts.On(all, path); len(on) > 0 {
			return fmt.Errorf("%s is a mount point, and what is on it is not removed: run `umount -R %s`, then start %s again", on[0], path, paths.ResetTarget)
		}
	}
	return nil
}

// tree removes the tree of slot. It gets another name first, so that one with its own name is whole.
func (r *Trees) tree(ctx context.Context, machines, slot string) error {
	r.Log.Status("remove the tree of %s", slot)
	places := r.places(machines, slot)
	whole, partial, removing := places[0], places[1], places[2]
	for _, left := range []place{removing, partial} { // by a reset or a build that was cut off
		if err := r.remove(ctx, left.name, left.real); err != nil {
			return err
		}
	}
	state, err := tree.Inspect(whole.real)
	switch {
	case err != nil:
		return err
	case state == tree.NotFolder:
		return fmt.Errorf("%s is no folder, so nothing that was made for a machine: move it away", whole.name)
	case state != tree.Empty && state != tree.Filled && state != tree.Subvolume:
		return r.remove(ctx, whole.name, whole.real)
	}
	err = removal.Rename(whole.real, removing.real)
	// A folder of a lower layer of an overlay cannot be renamed, and on a full disk there may be no room for
	// the name, or for what syncs it: then it is removed where it is.
	if err != nil && !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	for _, p := range []place{whole, removing} {
		if _, err := removal.Tree(ctx, p.real); err != nil {
			return err
		}
	}
	r.Log.Changed(whole.name, "removed")
	return nil
}

// remove removes what is at path; of a link only the link.
func (r *Trees) remove(ctx context.Context, name, path string) error {
	target, _ := os.Readlink(path) // empty: it is no link
	removed, err := removal.Tree(ctx, path)
	if err != nil || !removed {
		return err
	}
	if target != "" {
		r.Log.Notice("%s was a link: what it led to, %q, is left", name, target)
	}
	r.Log.Changed(name, "removed")
	return nil
}

// unlinkJournals removes the links by which the host's journal had the machines' in it (nspawn's --link-journal).
func (r *Trees) unlinkJournals() error {
	dir := paths.At(r.Root, journals)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Type() != fs.ModeSymlink {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if !ofTree(target) {
			continue
		}
		if _, err := durable.Remove(path); err != nil {
			return err
		}
		r.Log.Changed(filepath.Join(journals, entry.Name()), "removed the link to "+target)
	}
	return nil
}

// ofTree tells whether a link's target is in a tree, by its name: the tree is gone.
func ofTree(target string) bool {
	target = filepath.Clean(target)
	for _, slot := range paths.Slots() {
		if strings.HasPrefix(target, paths.Tree(slot)+"/") {
			return true
		}
	}
	return false
}
