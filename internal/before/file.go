package before

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"unicode/utf8"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

// Read is the state of the file at path on the host below root. Whatever is neither a
// regular file nor a symbolic link is an error.
func Read(root, path string) (State, error) {
	file := paths.At(root, path)
	info, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		dir, err := missingDir(root, filepath.Dir(path))
		return State{Absent: true, MissingDir: dir}, err
	}
	if err != nil {
		return State{}, err
	}
	if info.Mode().Type() == fs.ModeSymlink {
		target, err := os.Readlink(file)
		return State{Link: target}, err
	}
	if !info.Mode().IsRegular() {
		return State{}, fmt.Errorf("%s is neither a file nor a link: move it away", path)
	}
	s := State{Mode: info.Mode()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		s.UID, s.GID = stat.Uid, stat.Gid
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return State{}, err
	}
	if utf8.Valid(data) {
		s.Value = string(data)
	} else {
		s.Bytes = data
	}
	s.Xattrs, err = durable.Xattrs(file)
	return s, err
}

// missingDir is the topmost folder of dir that is not there, "" if all are.
func missingDir(root, dir string) (missing string, err error) {
	for ; ; dir = filepath.Dir(dir) {
		_, err := os.Lstat(paths.At(root, dir))
		switch {
		case err == nil || dir == "/":
			return missing, nil
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			missing = dir
		default:
			return "", err
		}
	}
}

// FileChange compares the file at path with content, which is text.
func FileChange(root, path, content string) (Change, error) {
	now, err := Read(root, path)
	return Change{Kind: File, Object: path, Now: now, Want: Text(content)}, err
}

// ApplyFile makes a change of kind File and says whether it wrote. The image has been saved.
// Mode and owner are made right too where only they differ.
func ApplyFile(root string, c Change) (changed bool, err error) {
	if c.Needed() {
		if err := durable.SweepFor(paths.At(root, c.Object)); err != nil {
			return false, err
		}
	}
	if c.Want.Absent {
		return durable.Remove(paths.At(root, c.Object))
	}
	return durable.Write(paths.At(root, c.Object), []byte(c.Want.Value), 0o644)
}
