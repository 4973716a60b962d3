// Package tree reads and writes inside the tree of a machine from outside of it.
//
// Nothing in a tree can be trusted: every path is resolved by the kernel as if the
// tree were the root (openat2, RESOLVE_IN_ROOT), so that no link, absolute or with
// dots, leads out of it. Files appear by rename, so a running machine sees the old
// one or the new one. Removing never crosses a mount.
//
// The package is a little longer than others because every way to touch a file needs its form that stays inside.
package tree

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"unbounded/internal/durable"
	"unbounded/internal/removal"
)

// Root is an open tree.
type Root struct {
	dir *os.File
	// Lazy leaves out the syncs: for a tree that is synced as a whole before anybody may rely on it.
	Lazy bool
}

// Open opens the tree at dir, which must be a folder and no link.
func Open(dir string) (*Root, error) {
	file, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	return &Root{dir: file}, nil
}

// Close closes the tree.
func (r *Root) Close() error { return r.dir.Close() }

// Name is the path that Open was given.
func (r *Root) Name() string { return r.dir.Name() }

// open resolves name inside the tree.
func (r *Root) open(name string, flags int) (*os.File, error) {
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(int(r.dir.Fd()), local(name), how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path.Join(r.dir.Name(), name)), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // a rename raced with the look-up
		default:
			return nil, &fs.PathError{Op: "open", Path: path.Join(r.dir.Name(), name), Err: err}
		}
	}
}

// local is name relative to the tree, without dots.
func local(name string) string {
	if name = strings.TrimPrefix(path.Clean("/"+name), "/"); name == "" {
		return "."
	}
	return name
}

// parent opens the folder that name is in.
func (r *Root) parent(name string) (dir *os.File, base string, err error) {
	dir, err = r.open(path.Dir(local(name)), unix.O_RDONLY|unix.O_DIRECTORY)
	return dir, path.Base(local(name)), err
}

// makeParent is parent for a file that is to be made: missing folders are too.
func (r *Root) makeParent(name string) (dir *os.File, base string, err error) {
	if err := r.MkdirAll(path.Dir(local(name))); err != nil {
		return nil, "", err
	}
	return r.parent(name)
}

// Lstat looks at name without following a link there.
func (r *Root) Lstat(name string) (fs.FileInfo, error) {
	file, err := r.open(name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return file.Stat()
}

// Open opens the regular file at name for reading. A link there is not followed.
func (r *Root) Open(name string) (*os.File, error) { return r.regular(name, unix.O_NOFOLLOW) }

// regular opens a regular file for reading, and does not wait at anything else that may be there.
func (r *Root) regular(name string, flags int) (*os.File, error) {
	file, err := r.open(name, unix.O_RDONLY|unix.O_NONBLOCK|flags)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: file.Name(), Err: errors.New("not a regular file")}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// ReadFile reads the regular file at name, refusing more than limit bytes. A link there is not followed.
func (r *Root) ReadFile(name string, limit int64) ([]byte, error) {
	return r.read(name, unix.O_NOFOLLOW, limit)
}

// ReadLinked is ReadFile that follows links at name too, inside the tree.
func (r *Root) ReadLinked(name string, limit int64) ([]byte, error) { return r.read(name, 0, limit) }

func (r *Root) read(name string, flags int, limit int64) ([]byte, error) {
	file, err := r.regular(name, flags)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = &fs.PathError{Op: "read", Path: file.Name(), Err: fmt.Errorf("more than %d bytes", limit)}
	}
	return data, err
}

// MkdirAll makes the folder name and its missing parents, 0755 and root's.
func (r *Root) MkdirAll(name string) error { return r.mkdirAll(local(name), 0) }

func (r *Root) mkdirAll(name string, depth int) error {
	dir, err := r.open(name, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		return dir.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) || depth > 16 {
		return err
	}
	if err := r.mkdirAll(path.Dir(name), depth+1); err != nil {
		return err
	}
	parent, base, err := r.parent(name)
	if err != nil {
		return err
	}
	defer parent.Close()
	err = unix.Mkdirat(int(parent.Fd()), base, 0o755)
	if errors.Is(err, unix.EEXIST) {
		if dir, err := r.open(name, unix.O_PATH|unix.O_DIRECTORY); err == nil {
			return dir.Close() // somebody else was faster
		}
		return r.mkdirTarget(parent, name, depth)
	}
	if err != nil {
		return &fs.PathError{Op: "mkdir", Path: path.Join(r.dir.Name(), name), Err: err}
	}
	if err := unix.Fchmodat(int(parent.Fd()), base, 0o755, 0); err != nil {
		return &fs.PathError{Op: "chmod", Path: path.Join(r.dir.Name(), name), Err: err}
	}
	return r.sync(parent)
}

// mkdirTarget makes what a dangling link points to: /opt → var/opt in an image whose /var is empty.
func (r *Root) mkdirTarget(parent *os.File, name string, depth int) error {
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(parent.Fd()), path.Base(name), buffer)
	if err != nil {
		return &fs.PathError{Op: "mkdir", Path: path.Join(r.dir.Name(), name), Err: unix.ENOTDIR}
	}
	target := string(buffer[:n])
	if !path.IsAbs(target) {
		target = path.Join(path.Dir(name), target)
	}
	return r.mkdirAll(local(target), depth+1)
}

func (r *Root) sync(file *os.File) error {
	if r.Lazy {
		return nil
	}
	return file.Sync()
}

// Write makes name a regular file with data and mode, owned by root, and says whether it changed anything.
// Missing folders are made. A link at name is replaced, never followed.
func (r *Root) Write(name string, data []byte, mode fs.FileMode) (changed bool, err error) {
	if info, err := r.Lstat(name); err == nil && info.Mode() == mode && info.Size() == int64(len(data)) && durable.Owned(info) {
		have, err := r.ReadFile(name, info.Size())
		if err == nil && bytes.Equal(have, data) {
			return false, nil
		}
	}
	return true, r.Place(name, mode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// Place makes name a regular file with what fill writes, mode, owned by root: beside,
// synced, renamed. When fill fails nothing has changed.
func (r *Root) Place(name string, mode fs.FileMode, fill func(io.Writer) error) (err error) {
	dir, base, err := r.makeParent(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	temp := durable.TempName(base)
	fd, err := unix.Openat(int(dir.Fd()), temp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "create", Path: path.Join(dir.Name(), temp), Err: err}
	}
	file := os.NewFile(uintptr(fd), path.Join(dir.Name(), temp))
	err = fill(file)
	if err == nil {
		err = errors.Join(file.Chown(os.Geteuid(), os.Getegid()), file.Chmod(mode))
	}
	if err == nil {
		err = r.sync(file)
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		// Commit point.
		err = unix.Renameat(int(dir.Fd()), temp, int(dir.Fd()), base)
	}
	if err != nil {
		_ = unix.Unlinkat(int(dir.Fd()), temp, 0) // the first failure is the one to tell
		return fmt.Errorf("write %s: %w", path.Join(dir.Name(), base), err)
	}
	return r.sync(dir)
}

// Sweep removes the temporary files that a killed Place left in the folder name.
func (r *Root) Sweep(name string) error { return r.sweep(name, durable.IsTemp) }

// SweepFor removes those that a killed writer of name left. The caller is its only writer.
func (r *Root) SweepFor(name string) error {
	return r.sweep(path.Dir(name), func(entry string) bool { return durable.IsTempOf(path.Base(name), entry) })
}

func (r *Root) sweep(name string, temporary func(entry string) bool) error {
	dir, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, entry := range names {
		if temporary(entry) {
			err = errors.Join(err, unix.Unlinkat(int(dir.Fd()), entry, 0))
		}
	}
	return err
}

// RemoveAll removes name and what is below it, without crossing a mount. An absent one is done.
func (r *Root) RemoveAll(name string) error {
	if local(name) == "." {
		return errors.New("remove: not the tree itself")
	}
	dir, base, err := r.parent(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return removal.At(removal.Never, dir, base)
}
