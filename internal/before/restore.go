package before

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

// Decide tells of every entry whether it is to be restored, for all of them before the first is, since
// restoring one may change others. What is one of Ours is to be restored. What is as it was before needs
// nothing: it never was changed, or a killed attempt has restored it. What is neither was changed by
// somebody else since, and is left. now reads the state of an entry's object.
func (i *Image) Decide(now func(Entry) (State, error)) (restore, left []Entry, err error) {
	for _, e := range i.entries {
		state, err := now(e)
		if err != nil {
			return nil, nil, fmt.Errorf("look at %s: %w", e.Object, err)
		}
		switch {
		case slices.ContainsFunc(e.Ours, state.Same), halfRemoved(e, state):
			restore = append(restore, e)
		case !state.Same(e.Before):
			left = append(left, e)
		}
	}
	return restore, left, nil
}

// halfRemoved tells whether e's file is gone and folders that were made for it are not: a restore was killed in between.
func halfRemoved(e Entry, now State) bool {
	return e.Before.Absent && now.Absent && e.Before.MissingDir != now.MissingDir
}

// SameBoot tells whether e's Before was read in the boot that is running.
func (i *Image) SameBoot(e Entry) bool { return e.BootID == i.bootID }

// Discard deletes the image, durably: everything in it has been restored or left. One that is not there is done.
func (i *Image) Discard() error {
	if err := durable.SweepFor(i.path); err != nil {
		return err
	}
	if _, err := durable.Remove(i.path); err != nil {
		return fmt.Errorf("discard before-image: %w", err)
	}
	i.entries, i.saved = nil, nil
	return nil
}

// RestoreFile puts the file of e, which is of kind File, back as it was, with mode, owner and extended attributes. One that was
// not there is removed, and with it the folders that had to be made for it, as far as nothing else is in them.
// The caller has decided that the file is ours.
func RestoreFile(root string, e Entry) error {
	path := paths.At(root, e.Object)
	if err := durable.SweepFor(path); err != nil && !errors.Is(err, syscall.ENOTDIR) {
		return err
	}
	if e.Before.Absent {
		if _, err := durable.Remove(path); err != nil {
			return err
		}
		return removeMade(root, filepath.Dir(e.Object), e.Before.MissingDir)
	}
	if e.Before.Link != "" {
		return durable.Symlink(e.Before.Link, path)
	}
	data := e.Before.Bytes
	if data == nil {
		data = []byte(e.Before.Value)
	}
	return durable.Put(path, data, durable.Dress{
		Mode: e.Before.Mode, UID: e.Before.UID, GID: e.Before.GID, Xattrs: e.Before.Xattrs,
	})
}

// removeMade removes dir and the folders above it up to top, the topmost that had to be made, as far as they are empty.
func removeMade(root, dir, top string) error {
	if top == "" {
		return nil
	}
	for ; under(dir, top); dir = filepath.Dir(dir) {
		_, err := durable.Remove(paths.At(root, dir))
		if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// under tells whether dir is top or below it.
func under(dir, top string) bool {
	return dir == top || len(dir) > len(top) && dir[:len(top)] == top && dir[len(top)] == '/'
}
