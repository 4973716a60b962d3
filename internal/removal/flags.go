package removal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// locked are the flags (chattr +i, +a) that forbid to unlink a file, or an entry of a folder.
const locked = unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND

// The same, as the ioctl knows them (FS_IMMUTABLE_FL, FS_APPEND_FL).
const (
	immutable  = 0x10
	appendOnly = 0x20
)

// unlink unlinks the entry and clears, where that is needed, flags that forbid it, of the entry and of the folder
// that it is in; but not of the folder that all of the removal happens in, which is not ours.
func unlink(parent *os.File, name string, how, depth int) error {
	err := unix.Unlinkat(int(parent.Fd()), name, how)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	stat, ask := statx(int(parent.Fd()), name)
	if ask != nil {
		return ask
	}
	folder, ask := statx(int(parent.Fd()), "")
	if ask != nil {
		return ask
	}
	if depth == 0 && folder.Attributes&locked != 0 {
		return fmt.Errorf("%w: run `chattr -ia %s`", err, parent.Name())
	}
	if folder.Attributes&locked != 0 {
		if err := setFlags(parent, 0); err != nil {
			return err
		}
	}
	if stat.Attributes&locked == 0 {
		err = unix.Unlinkat(int(parent.Fd()), name, how)
		if errors.Is(err, unix.EPERM) && how == 0 && stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			return unix.EISDIR // as some file systems say it
		}
		return err
	}
	return unlinkLocked(parent, name, how, stat)
}

// unlinkLocked unlinks a file that has the flags. When it has other names, perhaps outside of what is removed,
// those have the flags again afterwards.
func unlinkLocked(parent *os.File, name string, how int, stat unix.Statx_t) error {
	if kind := stat.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return unix.EPERM // opening it may do anything
	}
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), filepath.Join(parent.Name(), name))
	defer file.Close()
	if err := setFlags(file, 0); err != nil {
		return err
	}
	err = unix.Unlinkat(int(parent.Fd()), name, how)
	if stat.Mode&unix.S_IFMT == unix.S_IFREG && stat.Nlink > 1 {
		var flags int
		if stat.Attributes&unix.STATX_ATTR_IMMUTABLE != 0 {
			flags |= immutable
		}
		if stat.Attributes&unix.STATX_ATTR_APPEND != 0 {
			flags |= appendOnly
		}
		err = errors.Join(err, setFlags(file, flags))
	}
	return err
}

// setFlags makes the flags that forbid to unlink the file exactly flags, and leaves its others.
func setFlags(file *os.File, flags int) error {
	have, err := unix.IoctlGetUint32(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil {
		have = have&^(immutable|appendOnly) | uint32(flags)
		err = unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, int(have))
	}
	if err != nil {
		return fmt.Errorf("clear the flags of %q (chattr -ia): %w", file.Name(), err)
	}
	return nil
}

func statx(dir int, name string) (unix.Statx_t, error) {
	var stat unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_EMPTY_PATH
	err := unix.Statx(dir, name, flags, unix.STATX_TYPE|unix.STATX_NLINK, &stat)
	return stat, err
}

// destroy removes a read-only btrfs subvolume with all that is in it, which nothing else does, and says whether it did.
func destroy(parent *os.File, name string) bool {
	const (
		firstInode = 256        // of the top of every subvolume
		snapDelete = 0x5000940f // BTRFS_IOC_SNAP_DESTROY
	)
	var stat unix.Stat_t
	var where unix.Statfs_t
	err := unix.Fstatat(int(parent.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || stat.Mode&unix.S_IFMT != unix.S_IFDIR || stat.Ino != firstInode {
		return false
	}
	if err := unix.Fstatfs(int(parent.Fd()), &where); err != nil || where.Type != unix.BTRFS_SUPER_MAGIC {
		return false
	}
	var args struct { // struct btrfs_ioctl_vol_args
		fd   int64
		name [4088]byte
	}
	copy(args.name[:len(args.name)-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, parent.Fd(), snapDelete, uintptr(unsafe.Pointer(&args)))
	return errno == 0
}
