package tree

import (
	"context"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Watch tells of changes of the names in folders.
type Watch struct {
	root   *Root
	events *os.File
	// C gets a value after changes; several may be one value.
	C <-chan struct{}
}

// Watch returns a watch of no folder yet, which ends with ctx.
func (r *Root) Watch(ctx context.Context) (*Watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	events := os.NewFile(uintptr(fd), "inotify") // non-blocking: reads wait in Go's poller
	changes := make(chan struct{}, 1)
	context.AfterFunc(ctx, func() { _ = events.Close() })
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			if _, err := events.Read(buffer); err != nil {
				return // closed with the context
			}
			select {
			case changes <- struct{}{}:
			default: // one is waiting already
			}
		}
	}()
	return &Watch{r, events, changes}, nil
}

// Add watches the folder at name too: names that appear there, and files that were written. It is
// right to repeat. An absent folder is fs.ErrNotExist: watch the one above and try again.
func (w *Watch) Add(name string) error {
	dir, err := w.root.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	const mask = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_ONLYDIR
	events, err := w.events.SyscallConn()
	if err != nil {
		return err
	}
	// The open folder, not its path: a path would be resolved outside of the tree.
	folder := "/proc/self/fd/" + strconv.Itoa(int(dir.Fd()))
	controlErr := events.Control(func(fd uintptr) {
		_, err = unix.InotifyAddWatch(int(fd), folder, mask)
	})
	return errors.Join(controlErr, os.NewSyscallError("inotify_add_watch", err))
}
