package tree

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"unbounded/internal/durable"
)

// Stat looks at name; a link there is followed, inside the tree.
func (r *Root) Stat(name string) (fs.FileInfo, error) {
	file, err := r.open(name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return file.Stat()
}

// Readlink returns the target of the link at name.
func (r *Root) Readlink(name string) (string, error) {
	dir, base, err := r.parent(name)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), base, buffer)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: path.Join(r.dir.Name(), name), Err: err}
	}
	return string(buffer[:n]), nil
}

// Symlink makes name a link to target, whatever file or link was there. Missing folders are made.
func (r *Root) Symlink(target, name string) error {
	dir, base, err := r.makeParent(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	temp := durable.TempName(base)
	err = unix.Symlinkat(target, int(dir.Fd()), temp)
	if err == nil {
		// Commit point.
		err = unix.Renameat(int(dir.Fd()), temp, int(dir.Fd()), base)
	}
	if err != nil {
		_ = unix.Unlinkat(int(dir.Fd()), temp, 0) // the first failure is the one to tell
		return &fs.PathError{Op: "symlink", Path: path.Join(dir.Name(), base), Err: err}
	}
	return r.sync(dir)
}

// Folder makes the folder name, root's and with mode.
func (r *Root) Folder(name string, mode fs.FileMode) error {
	if err := r.MkdirAll(local(name)); err != nil {
		return err
	}
	dir, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	return errors.Join(dir.Chown(os.Geteuid(), os.Getegid()), dir.Chmod(mode), r.sync(dir), dir.Close())
}

// Unlink removes the file or link at name. An absent one is done.
func (r *Root) Unlink(name string) error {
	dir, base, err := r.parent(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	switch err := unix.Unlinkat(int(dir.Fd()), base, 0); {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &fs.PathError{Op: "unlink", Path: path.Join(dir.Name(), base), Err: err}
	}
	return r.sync(dir)
}

// Names returns what is in the folder name, sorted, without leftovers of a killed writer. An absent folder is empty.
func (r *Root) Names(name string) ([]string, error) {
	dir, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	names = slices.DeleteFunc(names, func(entry string) bool { return durable.IsTemp(entry) })
	slices.Sort(names)
	return names, err
}
