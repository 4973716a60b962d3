package mounts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"unbounded/internal/journal"
)

// patience is how long a mount may be in use: what has just ended lets go of its files a little later.
const patience = 2 * time.Second

// rounds is how often the table is read again because others mount and unmount at the same time.
const rounds = 16

// errElsewhere says that the mount is not (or no longer, or not yet) what its path leads to.
var errElsewhere = errors.New("its path does not lead to it")

// Table is the mount table of a host.
type Table struct {
	Proc string // "/proc"
	Log  *journal.Log
}

// Shown fails when what this process unmounts the host would not see: in a mount namespace of its own.
func Shown(proc string) error {
	own, err := os.Readlink(proc + "/self/ns/mnt")
	if err != nil {
		return err
	}
	host, err := os.Readlink(proc + "/1/ns/mnt")
	if err != nil {
		return err
	}
	if own != host {
		return errors.New("this process has mounts of its own, so it cannot unmount the host's: remove the sandbox settings that a drop-in gives to its unit")
	}
	return nil
}

// UnmountBelow unmounts everything that is mounted below dirs, but not at them. They have no links in them.
// What is in use stays, and is the error.
func (t Table) UnmountBelow(ctx context.Context, dirs ...string) error {
	for range rounds {
		all, err := Read(t.Proc)
		if err != nil {
			return err
		}
		steps := plan(all, dirs)
		if len(steps) == 0 {
			return nil
		}
		if err := t.follow(ctx, steps); err != nil {
			return err
		}
	}
	all, err := Read(t.Proc)
	if err != nil {
		return err
	}
	if steps := plan(all, dirs); len(steps) > 0 {
		return fmt.Errorf("unmount %s: mounted again and again, or its path does not lead to it: unmount it by hand", steps[0])
	}
	return nil
}

// follow takes the steps for as long as the table that they were planned from holds.
func (t Table) follow(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("unmount %s: %w", s.Mount, context.Cause(ctx))
		}
		if s.act == refuse {
			return fmt.Errorf("unmount %s: it hides a mount that is shared with %q, where the same would be unmounted: unmount it by hand", s.Mount, s.other)
		}
		err := t.take(ctx, s)
		if errors.Is(err, errElsewhere) || errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			return nil // somebody else was at work: look again
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", s.Mount, err)
		}
		if s.act == unmount {
			t.Log.Changed(s.Point, "unmounted "+s.Source)
		}
	}
	return nil
}

// take does the step, and waits a little for a mount that is in use.
func (t Table) take(ctx context.Context, s step) error {
	tick := time.NewTicker(50 * time.Millisecond) // a mount that falls free is no event
	defer tick.Stop()
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for said := false; ; said = true {
		err := once(s)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		if !said {
			t.Log.Status("wait for %s to be out of use", s.Mount)
		}
		select {
		case <-limit.Done():
			return fmt.Errorf("%w: %s", err, t.inUse(s.Mount))
		case <-tick.C:
		}
	}
}

func (t Table) inUse(m Mount) string {
	holders := t.Holders(m)
	if len(holders) == 0 {
		return "no process was found that uses it, so perhaps the kernel does (an export, swap, a mount in another namespace)"
	}
	return "used by " + strings.Join(holders, ", ") + ": end that, then start the reset again"
}

// once does the step. The path is resolved in two halves, since an open mount could not be unmounted.
func once(s step) error {
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	}
	folder, base := filepath.Split(s.Point)
	fd, err := openLong(folder, how)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var stat unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(fd, base, flags, unix.STATX_MNT_ID, &stat); err != nil {
		return err
	}
	if stat.Mask&unix.STATX_MNT_ID != 0 && stat.Mnt_id != uint64(s.ID) {
		return errElsewhere
	}
	target := "/proc/self/fd/" + strconv.Itoa(fd) + "/" + base
	if s.act == leave {
		return unix.Mount("", target, "", unix.MS_PRIVATE, "")
	}
	return unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
}

// openLong opens the folder at path, which may be longer than the kernel takes at once.
func openLong(path string, how *unix.OpenHow) (int, error) {
	at := unix.AT_FDCWD
	for {
		part := path
		if len(part) >= unix.PathMax {
			part = part[:strings.LastIndexByte(part[:unix.PathMax-1], '/')+1]
		}
		path = strings.TrimLeft(path[len(part):], "/")
		fd, err := openat2(at, part, how)
		if at != unix.AT_FDCWD {
			_ = unix.Close(at) // it was only a step on the way
		}
		if err != nil || path == "" {
			return fd, err
		}
		at = fd
	}
}

func openat2(at int, path string, how *unix.OpenHow) (int, error) {
	for {
		fd, err := unix.Openat2(at, path, how)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) { // EAGAIN: a rename raced with the look-up
			return fd, err
		}
	}
}
