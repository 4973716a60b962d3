package durable

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Rewrite gives the existing file at path other content and keeps its mode, owner and extended
// attributes: for files that belong to somebody else. A symbolic link is followed. Equal content writes nothing.
// The caller is the only one of our writers.
func Rewrite(path string, data []byte) (changed bool, err error) {
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	have, err := os.ReadFile(path)
	if err != nil || bytes.Equal(have, data) {
		return false, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	attributes, err := Xattrs(path)
	if err != nil {
		return false, err
	}
	if err := SweepFor(path); err != nil {
		return false, err
	}
	dress := Dress{Mode: info.Mode(), Xattrs: attributes}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		dress.UID, dress.GID = stat.Uid, stat.Gid
	}
	return true, Put(path, data, dress)
}

// Dress is what a file has beside its content.
type Dress struct {
	Mode     os.FileMode
	UID, GID uint32
	Xattrs   map[string][]byte
}

// Put is Replace for files that belong to somebody else: with their owner and extended attributes too.
func Put(path string, data []byte, dress Dress) error {
	if err := MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp, err := writeTemp(path, data, dress.Mode)
	if err != nil {
		return err
	}
	if err := dress.on(temp); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(temp))
	}
	// Commit point.
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(remedy(path, err), os.Remove(temp))
	}
	return SyncDir(filepath.Dir(path))
}

// Symlink makes path a symbolic link to target, in place of whatever file is there.
func Symlink(target, path string) error {
	if err := MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp := filepath.Join(filepath.Dir(path), TempName(filepath.Base(path)))
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	// Commit point.
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return SyncDir(filepath.Dir(path))
}

// SweepFor removes the temporary files that a killed writer of path left. The caller is path's only writer.
func SweepFor(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if IsTempOf(filepath.Base(path), entry.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(filepath.Dir(path), entry.Name())))
		}
	}
	return err
}

// on dresses the file at path, durably.
func (d Dress) on(path string) error {
	if err := os.Lchown(path, int(d.UID), int(d.GID)); err != nil {
		return err
	}
	if err := os.Chmod(path, d.Mode); err != nil { // a change of owner drops setuid
		return err
	}
	for name, value := range d.Xattrs {
		if err := unix.Lsetxattr(path, name, value, 0); err != nil {
			return fmt.Errorf("setxattr %s: %w", name, err)
		}
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// Xattrs are the extended attributes of path, a link not followed; nil where there are none or the file system has none.
func Xattrs(path string) (map[string][]byte, error) {
	names := make([]byte, 64<<10) // the kernel's limit for the list and for one value
	size, err := unix.Llistxattr(path, names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listxattr %s: %w", path, err)
	}
	var attributes map[string][]byte
	for name := range bytes.SplitSeq(names[:size], []byte{0}) {
		if len(name) == 0 {
			continue
		}
		value := make([]byte, 64<<10)
		size, err := unix.Lgetxattr(path, string(name), value)
		if err != nil {
			return nil, fmt.Errorf("getxattr %s of %s: %w", name, path, err)
		}
		if attributes == nil {
			attributes = map[string][]byte{}
		}
		attributes[string(name)] = value[:size]
	}
	return attributes, nil
}
