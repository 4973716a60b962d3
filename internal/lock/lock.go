// Package lock is the lifecycle lock: shared for the stages of a bootstrap, exclusive for reset and the daemon.
//
// Take never waits: a lock that somebody else holds is a *HeldError that names the
// holder. Wait does, for a bounded time. The file is never deleted; a leftover file is not a held lock.
package lock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
	process "unbounded/internal/proc"
)

// Mode is how a lock is held.
type Mode int

// The modes.
const (
	Shared Mode = iota
	Exclusive
)

// Lock is held until Release.
type Lock struct{ file *flock.Flock }

// Holder is a process that has the lock file open.
type Holder struct {
	PID  int
	Exe  string // empty when it cannot be read
	Unit string // systemd unit, empty when there is none
}

func (h Holder) String() string {
	s := "pid " + strconv.Itoa(h.PID)
	if h.Exe != "" {
		s += " " + h.Exe
	}
	if h.Unit != "" {
		s += " of " + h.Unit
	}
	return s
}

// HeldError says who holds the lock.
type HeldError struct {
	Path    string
	Holders []Holder
}

func (e *HeldError) Error() string {
	if len(e.Holders) == 0 {
		return fmt.Sprintf("lock %s is held by another process; try again when it has ended", e.Path)
	}
	names := make([]string, len(e.Holders))
	for i, holder := range e.Holders {
		names[i] = holder.String()
	}
	return fmt.Sprintf("lock %s is held by %s; try again when it has ended", e.Path, strings.Join(names, ", "))
}

// Take takes the lifecycle lock of the host below root at once, or says who holds it (*HeldError).
func Take(root string, mode Mode) (*Lock, error) {
	held, err := try(root, mode)
	if held == nil && err == nil {
		err = heldBy(root)
	}
	return held, err
}

// Look tells whether Take would get the shared lock (nil), or who holds it (*HeldError). It makes no file: without one
// nobody holds it.
func Look(root string) error {
	file := flock.New(paths.At(root, paths.Lock), flock.SetFlag(os.O_RDONLY))
	got, err := file.TryRLock()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return errors.Join(fmt.Errorf("lock %s: %w", file.Path(), err), file.Close())
	case !got:
		return errors.Join(heldBy(root), file.Close())
	}
	return file.Close()
}

// try takes the lock; nothing and no error is that somebody else holds it.
func try(root string, mode Mode) (*Lock, error) {
	path := paths.At(root, paths.Lock)
	if err := durable.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file := flock.New(path) // opens with O_CLOEXEC: no child inherits it
	take := file.TryRLock
	if mode == Exclusive {
		take = file.TryLock
	}
	got, err := take()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	if !got {
		return nil, file.Close()
	}
	return &Lock{file}, nil
}

func heldBy(root string) *HeldError {
	path := paths.At(root, paths.Lock)
	return &HeldError{path, Holders(paths.At(root, "/proc"), path)}
}

// Wait is Take that tries until limit has passed, or ctx ends. Each time that the lock is held by others than
// before, waiting is told of them. The error at the end is a *HeldError.
func Wait(ctx context.Context, root string, mode Mode, limit time.Duration, waiting func(*HeldError)) (*Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond) // flock(2) has no event for a lock that becomes free
	defer tick.Stop()
	look := time.NewTicker(time.Second) // to find the holders takes a walk over all processes
	defer look.Stop()
	last := ""
	tell := func() *HeldError {
		other := heldBy(root)
		if now := other.Error(); now != last {
			last = now
			waiting(other)
		}
		return other
	}
	for first := true; ; first = false {
		held, err := try(root, mode)
		if held != nil || err != nil {
			return held, err
		}
		if first {
			_ = tell()
		}
		select {
		case <-ctx.Done():
			return nil, tell()
		case <-look.C:
			_ = tell()
		case <-tick.C:
		}
	}
}

// Release lets go. The file stays.
func (l *Lock) Release() error { return l.file.Close() }

// Holders are the processes below proc ("/proc") that have the file at path open, but
// for the caller. It looks at descriptors, since /proc/locks names only who took a lock,
// not a child that inherited it.
func Holders(proc, path string) []Holder {
	want, err := os.Stat(path)
	if err != nil {
		return nil
	}
	var holders []Holder
	links, _ := filepath.Glob(proc + "/[0-9]*/fd/*") // the pattern is valid
	seen := map[int]bool{os.Getpid(): true}
	for _, link := range links {
		pid, err := strconv.Atoi(strings.Split(strings.TrimPrefix(link, proc+"/"), "/")[0])
		if err != nil || seen[pid] {
			continue
		}
		have, err := os.Stat(link)
		if err != nil || !os.SameFile(want, have) || !locked(proc, pid, filepath.Base(link)) {
			continue
		}
		seen[pid] = true
		exe, _ := os.Readlink(fmt.Sprintf("%s/%d/exe", proc, pid)) // a name less in the message
		holders = append(holders, Holder{pid, exe, process.Unit(proc, pid)})
	}
	return holders
}

// locked tells a holder from a process that, like us, only tries.
func locked(proc string, pid int, fd string) bool {
	info, err := os.ReadFile(fmt.Sprintf("%s/%d/fdinfo/%s", proc, pid, fd))
	if errors.Is(err, syscall.EACCES) {
		return true
	}
	return err == nil && strings.Contains(string(info), "\nlock:")
}
