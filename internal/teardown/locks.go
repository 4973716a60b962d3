package teardown

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"unbounded/internal/durable"
	"unbounded/internal/lock"
	"unbounded/internal/paths"
)

// claims are lock files of nspawn, taken: neither nspawn nor machined uses the trees.
type claims []claimed

type claimed struct {
	name string // as the host knows it
	*os.File
}

func (c claims) release() error {
	var err error
	for _, file := range c {
		err = errors.Join(err, file.Close())
	}
	return err
}

// claim takes the lock files that a killed nspawn left of slot. One that is held is of a machine that runs from
// the tree under whatever name, which neither PID 1 nor machined need to know.
func (r *Trees) claim(locks *claims, machines, slot string) error {
	name := filepath.Join(paths.Machines, ".#"+slot+".lck")
	if err := r.take(locks, name, filepath.Join(machines, filepath.Base(name))); err != nil {
		return err
	}
	name = filepath.Join(runLocks, "name-"+slot)
	if err := r.take(locks, name, paths.At(r.Root, name)); err != nil {
		return err
	}
	for _, p := range r.places(machines, slot) {
		info, err := os.Lstat(p.real)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || !info.IsDir() {
			continue
		}
		name := filepath.Join(runLocks, fmt.Sprintf("inode-%d:%d", stat.Dev, stat.Ino))
		if err := r.take(locks, name, paths.At(r.Root, name)); err != nil {
			return err
		}
	}
	return nil
}

func (r *Trees) take(locks *claims, name, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &whole)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		who := "another process"
		if holders := lock.Holders(r.Proc, path); len(holders) > 0 {
			who = holders[0].String()
		}
		return errors.Join(fmt.Errorf("the tree that %s locks is in use by %s: end that, then start %s again",
			name, who, paths.ResetTarget), file.Close())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	*locks = append(*locks, claimed{name, file})
	return nil
}

// unlink removes the lock files, before their trees, by which they are found.
func (r *Trees) unlink(locks claims) error {
	for _, file := range locks {
		removed, err := durable.Remove(file.Name())
		if err != nil {
			return err
		}
		if removed {
			r.Log.Changed(file.name, "removed")
		}
	}
	return nil
}
