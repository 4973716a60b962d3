package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// State is what is found where a tree should be.
type State int

// The states.
const (
	Absent State = iota
	Empty        // an empty folder
	Filled       // a folder with something in it; whose it is, its inventory says
	Mount        // a mount point
	Symlink
	Subvolume // of btrfs: cannot be renamed over
	NotFolder
)

// String says it for messages: "/var/lib/machines/kube1 is …".
func (s State) String() string {
	switch s {
	case Absent:
		return "absent"
	case Empty:
		return "an empty folder"
	case Filled:
		return "a folder that is not empty"
	case Mount:
		return "a mount point"
	case Symlink:
		return "a symbolic link"
	case Subvolume:
		return "a btrfs subvolume"
	case NotFolder:
		return "not a folder"
	}
	return fmt.Sprintf("state %d", int(s))
}

// Inspect tells what is at dir. It changes nothing and follows no link there.
func Inspect(dir string) (State, error) {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &stat)
	if errors.Is(err, fs.ErrNotExist) {
		return Absent, nil
	}
	if err != nil {
		return Absent, &fs.PathError{Op: "statx", Path: dir, Err: err}
	}
	var where unix.Statfs_t
	if err := unix.Statfs(dir, &where); err != nil && uint32(stat.Mode)&unix.S_IFMT == unix.S_IFDIR {
		return Absent, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if s, known := classify(stat, where.Type); known {
		return s, nil
	}
	folder, err := os.Open(dir)
	if err != nil {
		return Absent, err
	}
	defer folder.Close()
	switch _, err := folder.Readdirnames(1); {
	case err == io.EOF:
		return Empty, nil
	case err != nil:
		return Absent, err
	}
	return Filled, nil
}

// firstInode is the inode of the top of every btrfs subvolume.
const firstInode = 256

// classify is the part of Inspect that needs no look inside.
func classify(stat unix.Statx_t, fsType int64) (State, bool) {
	switch uint32(stat.Mode) & unix.S_IFMT {
	case unix.S_IFLNK:
		return Symlink, true
	case unix.S_IFDIR:
	default:
		return NotFolder, true
	}
	switch {
	case stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return Mount, true
	case fsType == unix.BTRFS_SUPER_MAGIC && stat.Ino == firstInode:
		return Subvolume, true
	}
	return Absent, false
}

// Free is how many bytes and inodes an unprivileged writer may still use on the file
// system that holds path. File systems without a fixed number of inodes say 0 of 0: then inodes is -1.
func Free(path string) (bytes, inodes int64, err error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	inodes = int64(stat.Ffree)
	if stat.Files == 0 {
		inodes = -1
	}
	return int64(stat.Bavail) * stat.Bsize, inodes, nil
}
