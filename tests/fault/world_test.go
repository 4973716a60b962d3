//go:build host || fault

package fault

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

// file is one path of a picture.
type file struct {
	mode     uint32 // type and permissions
	uid, gid uint32
	rdev     uint64
	data     string // content, or the target of a link
	xattrs   string
	time     unix.Timespec // of the last change of the content
}

// same tells whether two files are the same but for times.
func (f file) same(other file) bool {
	f.time, other.time = unix.Timespec{}, unix.Timespec{}
	return f == other
}

func (f file) folder() bool { return f.mode&unix.S_IFMT == unix.S_IFDIR }

func (f file) String() string {
	return fmt.Sprintf("%07o %d:%d%s %.60q", f.mode, f.uid, f.gid, f.xattrs, f.data)
}

// picture is what is in some folders of a host.
type picture map[string]file

// world are folders and files of a host that the test may look at and put back.
type world struct {
	root  string // where the host's / is seen from here
	roots []string
	known map[identity]file // content that need not be read again
}

// identity is that of a file with its content.
type identity struct {
	dev, ino, size uint64
	changed        unix.Timespec
}

// take looks at everything.
func (w *world) take() (picture, error) {
	all := picture{}
	for _, start := range w.roots {
		err := filepath.WalkDir(w.root+start, func(name string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			f, err := w.look(name)
			all[strings.TrimPrefix(name, w.root)] = f
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (w *world) look(name string) (file, error) {
	var s unix.Stat_t
	if err := unix.Lstat(name, &s); err != nil {
		return file{}, err
	}
	id := identity{s.Dev, s.Ino, uint64(s.Size), s.Ctim}
	if f, known := w.known[id]; known {
		return f, nil
	}
	f := file{mode: s.Mode, uid: s.Uid, gid: s.Gid, rdev: s.Rdev, time: s.Mtim}
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		data, err := os.ReadFile(name)
		if err != nil {
			return f, err
		}
		f.data = string(data)
	case unix.S_IFLNK:
		target, err := os.Readlink(name)
		if err != nil {
			return f, err
		}
		f.data = target
	}
	list := make([]byte, 1024)
	n, err := unix.Llistxattr(name, list)
	if err != nil {
		return f, fmt.Errorf("attributes of %s: %w", name, err)
	}
	for attribute := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if attribute == "" || strings.HasPrefix(attribute, "trusted.overlay.") {
			continue
		}
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(name, attribute, value)
		if err != nil {
			return f, fmt.Errorf("%s of %s: %w", attribute, name, err)
		}
		f.xattrs += fmt.Sprintf(" %s=%x", attribute, value[:n])
	}
	w.known[id] = f
	return f, nil
}

// put makes everything as in a picture.
func (w *world) put(want picture) error {
	have, err := w.take()
	if err != nil {
		return err
	}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(have))) {
		if f, wanted := want[name]; !wanted || f.mode&unix.S_IFMT != have[name].mode&unix.S_IFMT {
			if err := os.Remove(w.root + name); err != nil {
				return err
			}
			delete(have, name)
		}
	}
	var folders []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if f, there := have[name]; there && f == want[name] {
			continue
		}
		if err := write(w.root+name, want[name]); err != nil {
			return fmt.Errorf("put back %s: %w", name, err)
		}
		if want[name].folder() {
			folders = append(folders, name)
		}
	}
	// What was put into a folder has changed its time.
	for _, name := range slices.Backward(folders) {
		if err := touch(w.root+name, want[name].time); err != nil {
			return err
		}
	}
	return nil
}

func write(name string, f file) error {
	var err error
	switch f.mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if err = os.Mkdir(name, 0o700); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	case unix.S_IFREG:
		_ = os.Remove(name)
		err = os.WriteFile(name, []byte(f.data), 0o600)
	case unix.S_IFLNK:
		_ = os.Remove(name)
		err = os.Symlink(f.data, name)
	default:
		_ = os.Remove(name)
		err = unix.Mknod(name, f.mode, int(f.rdev))
	}
	if err != nil {
		return err
	}
	if err := os.Lchown(name, int(f.uid), int(f.gid)); err != nil {
		return err
	}
	if f.mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(name, f.mode&0o7777); err != nil {
			return err
		}
	}
	for attribute := range strings.FieldsSeq(f.xattrs) {
		key, hex, _ := strings.Cut(attribute, "=")
		var value []byte
		if _, err := fmt.Sscanf(hex, "%x", &value); err != nil {
			return err
		}
		if err := unix.Lsetxattr(name, key, value, 0); err != nil {
			return err
		}
	}
	return touch(name, f.time)
}

func touch(name string, time unix.Timespec) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{time, time}, unix.AT_SYMLINK_NOFOLLOW)
}

// differences says how one picture differs from another, a line for each path.
func differences(want, have picture) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(have)) {
		f, there := want[name]
		switch {
		case unimportant(name):
		case !there:
			lines = append(lines, fmt.Sprintf("%s: is there, %v", name, have[name]))
		case !f.same(have[name]):
			lines = append(lines, fmt.Sprintf("%s: %v, want %v", name, have[name], f))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if _, there := have[name]; !there && !unimportant(name) {
			lines = append(lines, name+": is gone, want "+want[name].String())
		}
	}
	return lines
}

// unimportant are what a failure leaves for people to read, and locks, which are never removed.
func unimportant(name string) bool {
	return name == paths.LastFailure || name == paths.Lock || name == paths.RecordLock || path.Base(name) == ".lock"
}

// halves says which files are neither as in one picture nor as in the other, nor plainly temporary.
// What a glob of between names may be anything, but JSON has to be whole.
func halves(before, after, have picture, between []string) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(have)) {
		f := have[name]
		if unimportant(name) || f.folder() || inTemp(name) {
			continue
		}
		if f.same(before[name]) || f.same(after[name]) {
			continue
		}
		if matches(between, name) && (path.Ext(name) != ".json" || json.Valid([]byte(f.data))) {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s is half: %v, before %v, at the end %v", name, f, before[name], after[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		_, there := have[name]
		_, kept := after[name]
		if !there && kept && !unimportant(name) && !matches(between, name) {
			lines = append(lines, name+" is gone for a while")
		}
	}
	return lines
}

// inTemp tells of files that their names call unfinished, or that lie in such a folder.
func inTemp(name string) bool {
	return durable.IsTemp(name) || strings.Contains(name, ".partial") || strings.Contains(name, ".removing")
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if prefix, whole := strings.CutSuffix(pattern, "/**"); whole {
			return strings.HasPrefix(name, prefix+"/")
		}
		matched, err := path.Match(pattern, name)
		return matched || err != nil
	})
}

// withoutID is a record without its random id.
func withoutID(p picture) picture {
	f, there := p[paths.Record]
	var fields map[string]any
	if !there || json.Unmarshal([]byte(f.data), &fields) != nil {
		return p
	}
	delete(fields, "installID")
	var plain bytes.Buffer
	if json.NewEncoder(&plain).Encode(fields) != nil {
		return p
	}
	p = maps.Clone(p)
	f.data = plain.String()
	p[paths.Record] = f
	return p
}

// loosen leaves of some files only that they are there.
func loosen(p picture, loose []string) picture {
	if len(loose) == 0 {
		return p
	}
	p = maps.Clone(p)
	for name, f := range p {
		if matches(loose, name) && json.Valid([]byte(f.data)) {
			f.data = "{}"
			p[name] = f
		}
	}
	return p
}
