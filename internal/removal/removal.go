// Package removal removes folders with all that is in them: never across a mount, never through a link.
//
// What was in the folder is not trusted. It may be deeper than descriptors and paths allow, immutable, a subvolume,
// and be written to meanwhile: all that is removed, or the error names the path. A removal that was cut off
// is gone on with by the next.
package removal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"unbounded/internal/durable"
)

// ErrMount is in the chain when removing met a mount point. Everything on the mount is untouched.
var ErrMount = errors.New("is a mount point: unmount it first")

const (
	deepest = 64 // folders in folders; deeper ones are moved up
	refills = 64 // how often a folder may be filled again while it is removed
)

// Tree removes what is at path, which may be absent, and syncs its folder. It says whether anything was there.
// It looks before it unlinks: unlinking an absent path on a read-only file system says EROFS.
func Tree(ctx context.Context, path string) (removed bool, err error) {
	return Until(func() error { return context.Cause(ctx) }, path)
}

// Never is a stop that never comes: for what has to be removed though all else is cancelled.
func Never() error { return nil }

// Until is Tree that an error of stop, which is asked in each folder, ends.
func Until(stop func() error, path string) (removed bool, err error) {
	parent, err := os.OpenFile(filepath.Dir(path), unix.O_DIRECTORY|os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer parent.Close()
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err := At(stop, parent, filepath.Base(path)); err != nil {
		return true, fmt.Errorf("remove %s: %w", path, err)
	}
	return true, durable.SyncDir(filepath.Dir(path))
}

// At removes the entry name of the open folder parent, and syncs nothing. An absent one is done.
func At(stop func() error, parent *os.File, name string) error {
	return (&worker{stop: stop}).remove(parent, name, 0)
}

// worker removes one entry and all below it.
type worker struct {
	stop  func() error
	top   *os.File // the open folder that is removed, once it is open
	moved int      // folders that were moved up to it
}

func (w *worker) remove(parent *os.File, name string, depth int) error {
	full := filepath.Join(parent.Name(), name)
	err := unlink(parent, name, 0, depth)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%q %w", full, ErrMount)
	case !errors.Is(err, unix.EISDIR):
		return &fs.PathError{Op: "unlink", Path: full, Err: err}
	}
	if depth > deepest && w.up(parent, name) {
		return nil
	}
	for range refills {
		if err := w.empty(parent, name, full, depth); err != nil {
			if errors.Is(err, unix.EROFS) && destroy(parent, name) {
				return nil
			}
			return err
		}
		err = unlink(parent, name, unix.AT_REMOVEDIR, depth)
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%q %w", full, ErrMount)
	case errors.Is(err, unix.ENOTEMPTY):
		return fmt.Errorf("%q is filled again while it is removed: end what writes there", full)
	}
	return &fs.PathError{Op: "rmdir", Path: full, Err: err}
}

// up moves a folder that is too deep to the top, which is emptied until nothing is left. What cannot be
// moved is removed where it is.
func (w *worker) up(parent *os.File, name string) bool {
	for range refills {
		w.moved++
		to := ".unbounded-deep-" + strconv.Itoa(w.moved)
		err := unix.Renameat2(int(parent.Fd()), name, int(w.top.Fd()), to, unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) { // of a removal that was cut off
			return err == nil
		}
	}
	return false
}

// empty removes what is in the folder.
func (w *worker) empty(parent *os.File, name, full string, depth int) error {
	fd, err := unix.Openat2(int(parent.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	switch {
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%q %w", full, ErrMount)
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &fs.PathError{Op: "open", Path: full, Err: err}
	}
	dir := os.NewFile(uintptr(fd), full)
	defer dir.Close()
	if w.top == nil {
		w.top = dir
		defer func() { w.top = nil }()
	}
	for {
		if err := w.stop(); err != nil {
			return fmt.Errorf("stopped at %q: %w", full, err)
		}
		names, err := dir.Readdirnames(512)
		for _, entry := range names {
			if err := w.remove(dir, entry, depth+1); err != nil {
				return err
			}
		}
		if len(names) > 0 {
			// Names may be skipped when entries vanish under the reader: look again from the start.
			if _, err := dir.Seek(0, io.SeekStart); err != nil {
				return &fs.PathError{Op: "seek", Path: full, Err: err}
			}
			continue
		}
		if err != nil && err != io.EOF {
			return err
		}
		return nil
	}
}
