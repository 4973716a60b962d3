package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"unbounded/internal/durable"
)

// ErrMount is in the chain when removing met a mount point. Everything on the mount is untouched.
var ErrMount = errors.New("is a mount point: unmount it first")

// Remove removes the tree at dir, which may be absent, without following links or crossing a mount, and syncs its folder.
func Remove(dir string) error {
	parent, err := os.OpenFile(filepath.Dir(dir), unix.O_DIRECTORY|os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := removeAt(parent, filepath.Base(dir)); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return durable.SyncDir(filepath.Dir(dir))
}

func removeAt(parent *os.File, name string) error {
	full := filepath.Join(parent.Name(), name)
	err := unix.Unlinkat(int(parent.Fd()), name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%q %w", full, ErrMount)
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return &fs.PathError{Op: "unlink", Path: full, Err: err}
	}
	if err := emptyAt(parent, name, full); err != nil {
		return err
	}
	err = unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR)
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%q %w", full, ErrMount)
	case err != nil && !errors.Is(err, unix.ENOENT):
		return &fs.PathError{Op: "rmdir", Path: full, Err: err}
	}
	return nil
}

// emptyAt removes what is in the folder.
func emptyAt(parent *os.File, name, full string) error {
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
	for {
		names, err := dir.Readdirnames(512)
		for _, entry := range names {
			if err := removeAt(dir, entry); err != nil {
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
