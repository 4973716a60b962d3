package host

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree is what a tree of files is: a line for each path, with type and mode, owner,
// time of change, extended attributes and content. Compare two with cmp.Diff.
type Tree map[string]string

// TreeOptions choose what a Tree tells. The zero value is the whole host, all of it.
type TreeOptions struct {
	Paths   []string // folders and files of the host, default "/"
	Exclude []string // paths that are left out with all below them; "*" as in path.Match
	NoTimes bool     // without times, to compare two runs
	Running bool     // as the running host sees it, mounts such as /run included
}

// Noise are paths that change on a host where nobody does anything.
var Noise = []string{
	"/dev", "/proc", "/sys", "/run", "/tmp", "/var/tmp",
	"/var/log", "/var/cache", "/var/lib/systemd", "/var/lib/dbus", "/etc/.updated", "/var/.updated",
	"/var/lib/machines/*/var/log", "/var/lib/machines/*/var/lib/systemd", "/var/lib/machines/*/var/cache",
	"/var/lib/machines/*/var/lib/containerd", "/var/lib/machines/*/var/lib/kubelet/pods",
	"/var/lib/machines/*/tmp", "/var/lib/machines/*/var/tmp", "/var/lib/machines/*/run",
}

// Tree reads files of the host.
func (h *Host) Tree(t T, options TreeOptions) Tree {
	t.Helper()
	root := h.Root
	if options.Running {
		root = h.view()
	}
	if len(options.Paths) == 0 {
		options.Paths = []string{"/"}
	}
	tree := Tree{}
	for _, start := range options.Paths {
		if err := tree.add(root, start, options); err != nil {
			t.Fatalf("read the tree of %s: %v", start, err)
		}
	}
	return tree
}

// Hash is one value for a tree.
func (tree Tree) Hash() string {
	sum := sha256.New()
	names := make([]string, 0, len(tree))
	for name := range tree {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(sum, "%q %s\n", name, tree[name])
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func (tree Tree) add(root, start string, options TreeOptions) error {
	top := filepath.Join(root, start)
	if path.Clean(start) == "/" {
		top = root + "/" // the root of a running host is a link
	}
	return filepath.WalkDir(top, func(name string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone between two looks, or never there: its absence is in the tree
		}
		if err != nil {
			return err
		}
		inside := path.Clean("/" + strings.TrimPrefix(name, root))
		switch {
		case !excluded(inside, options.Exclude):
		case entry.IsDir():
			return fs.SkipDir
		default:
			return nil
		}
		line, err := describeFile(name, !options.NoTimes)
		if errors.Is(err, fs.ErrNotExist) { // it went since its folder was read
			return nil
		}
		if err != nil {
			return err
		}
		tree[inside] = line
		return nil
	})
}

func excluded(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, name)
		return matched || err != nil
	})
}

// describeFile is the line of one file.
func describeFile(name string, times bool) (string, error) {
	var status unix.Stat_t
	if err := unix.Lstat(name, &status); err != nil {
		return "", &fs.PathError{Op: "lstat", Path: name, Err: err}
	}
	line := fmt.Sprintf("%07o %d:%d", status.Mode, status.Uid, status.Gid)
	if times {
		line += fmt.Sprintf(" %d.%09d", status.Mtim.Sec, status.Mtim.Nsec)
	}
	attributes, err := attributesOf(name)
	if err != nil {
		return "", err
	}
	content, err := contentOf(name, &status)
	return line + attributes + content, err
}

// contentOf is what is in a file, by its type.
func contentOf(name string, status *unix.Stat_t) (string, error) {
	switch status.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		file, err := os.Open(name)
		if err != nil {
			return "", err
		}
		defer file.Close()
		sum := sha256.New()
		if _, err := io.Copy(sum, file); err != nil {
			return "", err
		}
		return fmt.Sprintf(" links=%d size=%d %x", status.Nlink, status.Size, sum.Sum(nil)), nil
	case unix.S_IFLNK:
		target, err := os.Readlink(name)
		return " -> " + target, err
	case unix.S_IFCHR, unix.S_IFBLK:
		return fmt.Sprintf(" device %d:%d", unix.Major(status.Rdev), unix.Minor(status.Rdev)), nil
	}
	return "", nil
}

// attributesOf are the extended attributes of a file, without those of overlayfs.
func attributesOf(name string) (string, error) {
	size, err := unix.Llistxattr(name, nil)
	if err != nil || size == 0 {
		return "", ignoreUnsupported(err)
	}
	list := make([]byte, size)
	if size, err = unix.Llistxattr(name, list); err != nil {
		return "", err
	}
	names := strings.Split(strings.TrimSuffix(string(list[:size]), "\x00"), "\x00")
	slices.Sort(names)
	var text strings.Builder
	for _, attribute := range names {
		// The list of a layer is empty but for those that the mount hides.
		if attribute == "" || strings.HasPrefix(attribute, "trusted.overlay.") {
			continue
		}
		value := make([]byte, 64*1024)
		n, err := unix.Lgetxattr(name, attribute, value)
		if err != nil {
			return "", fmt.Errorf("read %s of %s: %w", attribute, name, err)
		}
		fmt.Fprintf(&text, " %s=%x", attribute, value[:n])
	}
	return text.String(), nil
}

func ignoreUnsupported(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}
