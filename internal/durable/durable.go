// Package durable writes files so that a kill or a power cut at any moment leaves the old or the new one.
//
// Every write is: temporary file beside, mode and owner, fsync, rename, fsync of the
// folder. Folders that had to be made are synced with their parents. All functions
// are right to repeat; Write changes nothing when nothing differs.
package durable

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// tempMark is in the name of every temporary file, so that Sweep knows ours.
const tempMark = ".unbounded-tmp-"

// Write makes path a regular file with data and mode, owned by root, and says whether it changed anything.
// A path that holds exactly that is left alone, its mtime included. A symlink at path is replaced, never followed.
// Missing parents are made with mode 0755 (0700 where mode keeps others out).
func Write(path string, data []byte, mode fs.FileMode) (changed bool, err error) {
	same, err := holds(path, data, mode)
	if err != nil || same {
		return false, err
	}
	return true, Replace(path, data, mode)
}

// Replace is Write without the look before it.
func Replace(path string, data []byte, mode fs.FileMode) error {
	parent := fs.FileMode(0o755)
	if mode&0o077 == 0 {
		parent = 0o700
	}
	if err := MkdirAll(filepath.Dir(path), parent); err != nil {
		return err
	}
	temp, err := writeTemp(path, data, mode)
	if err != nil {
		return err
	}
	// Commit point.
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(remedy(path, err), os.Remove(temp))
	}
	return SyncDir(filepath.Dir(path))
}

// Mark makes path an empty file with mode 0600 and says whether it changed anything. Unlike Write it needs
// no temporary file, which a kill would leave: an empty file is whole as soon as it is there.
func Mark(path string) (changed bool, err error) {
	same, err := holds(path, nil, 0o600)
	if err != nil || same {
		return false, err
	}
	if err := MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return false, err
	}
	// Commit point.
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) { // something else, or another stage was faster
		return Write(path, nil, 0o600)
	}
	if err != nil {
		return false, err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return true, fmt.Errorf("write %s: %w", path, err)
	}
	return true, SyncDir(filepath.Dir(path))
}

func holds(path string, data []byte, mode fs.FileMode) (bool, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return false, nil
	case err != nil:
		return false, err
	}
	if !info.Mode().IsRegular() || info.Mode() != mode || info.Size() != int64(len(data)) {
		return false, nil
	}
	if !Owned(info) {
		return false, nil
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, data), err
}

// Owned tells whether a file belongs to who runs this program: root, but in tests.
func Owned(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid() && int(stat.Gid) == os.Getegid()
}

func writeTemp(path string, data []byte, mode fs.FileMode) (string, error) {
	name := filepath.Join(filepath.Dir(path), TempName(filepath.Base(path)))
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Chmod(mode)
	}
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(name))
	}
	return name, nil
}

// TempName is a name for a temporary file beside the file called base, which Sweep knows.
func TempName(base string) string {
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails: crypto/rand ends the program instead
	return tempPrefix(base) + hex.EncodeToString(random[:])
}

// tempPrefix is what all temporary names for base begin with. A name has 255 bytes at most.
func tempPrefix(base string) string { return "." + base[:min(len(base), 200)] + tempMark }

// IsTemp tells whether TempName made name.
func IsTemp(name string) bool { return strings.Contains(name, tempMark) }

// IsTempOf tells whether TempName made name for a file called base.
func IsTempOf(base, name string) bool { return strings.HasPrefix(name, tempPrefix(base)) }

// Rename moves from to an absent (or same-kind) to, and syncs both folders.
func Rename(from, to string) error {
	// Commit point.
	if err := os.Rename(from, to); err != nil {
		return err
	}
	if a, b := filepath.Dir(from), filepath.Dir(to); a != b {
		if err := SyncDir(a); err != nil {
			return err
		}
	}
	return SyncDir(filepath.Dir(to))
}

// Remove removes the file or empty folder at path and says whether it was there.
// It looks before it unlinks: unlinking an absent path on a read-only file system says EROFS.
func Remove(path string) (removed bool, err error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if err := os.Remove(path); err != nil {
		return false, remedy(path, err)
	}
	return true, SyncDir(filepath.Dir(path))
}

// remedy adds to an error about path what to do about it: root is kept from changing a file by flags of it or of
// its folder, and a folder with something in it is in the place of what we make.
func remedy(path string, err error) error {
	switch {
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%w: see `lsattr -d %s %s`", err, filepath.Dir(path), path)
	case errors.Is(err, syscall.ENOTEMPTY):
		return fmt.Errorf("%w, and none of ours: move it away", err)
	}
	return err
}

// MkdirAll makes dir and its missing parents with mode, whatever the umask, and syncs
// each new one and the first that was there.
func MkdirAll(dir string, mode fs.FileMode) error {
	info, err := os.Stat(dir)
	if err == nil {
		if !info.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if err := MkdirAll(parent, mode); err != nil {
		return err
	}
	switch err := os.Mkdir(dir, mode); {
	case errors.Is(err, fs.ErrExist):
		return nil // another stage was faster
	case err != nil:
		return err
	}
	if err := os.Chmod(dir, mode); err != nil {
		return err
	}
	if err := SyncDir(dir); err != nil {
		return err
	}
	return SyncDir(parent)
}

// SyncDir makes the entries of dir durable.
func SyncDir(dir string) error {
	handle, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(handle.Sync(), handle.Close())
}

// SyncFS makes the whole file system that holds path durable.
func SyncFS(path string) error {
	handle, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := unix.Syncfs(int(handle.Fd())); err != nil {
		return errors.Join(fmt.Errorf("syncfs %s: %w", path, err), handle.Close())
	}
	return handle.Close()
}

// Sweep removes the temporary files that a killed writer left in dir. The caller holds
// whatever keeps other writers out of dir. An absent dir is nothing to do.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if IsTemp(entry.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, entry.Name())))
		}
	}
	return err
}
