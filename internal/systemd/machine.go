package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"unbounded/internal/cgroup"
	"unbounded/internal/paths"
)

// Inner returns the service manager that is PID 1 of the machine in slot, reached through the bus socket in
// its tree. m must stay open for as long as it is used. It ends with the machine: one that was started
// again meanwhile is another (ErrClosed). machined is not asked, so it may be away.
func (m *Manager) Inner(ctx context.Context, slot string) (*Manager, error) {
	first := 0
	return connect(ctx, func(ctx context.Context) (*session, error) {
		leader, err := m.leader(ctx, slot)
		if err != nil {
			return nil, err
		}
		if first != 0 && leader != first {
			return nil, fmt.Errorf("%w: machine %s was started again", ErrClosed, slot)
		}
		first = leader
		socket, err := insideSocket(leader, paths.Tree(slot), paths.SystemBus)
		if err != nil {
			return nil, fmt.Errorf("machine %s has no bus: %w; see `journalctl -M %s -b`", slot, err, slot)
		}
		defer socket.Close()
		s, err := open(ctx, procPath(socket), true)
		if err != nil {
			return nil, fmt.Errorf("the bus of machine %s does not answer: %w; see `journalctl -M %s -b`", slot, err, slot)
		}
		return s, nil
	})
}

// WaitSocket waits until something accepts on the unix socket at path inside the machine in slot. It has to try:
// that somebody listens is no event.
func (m *Manager) WaitSocket(ctx context.Context, slot, path string) error {
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for {
		err := m.trySocket(ctx, slot, path)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s in machine %s: %w (%w)", path, slot, err, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func (m *Manager) trySocket(ctx context.Context, slot, path string) error {
	leader, err := m.leader(ctx, slot)
	if err != nil {
		return err
	}
	socket, err := insideSocket(leader, paths.Tree(slot), path)
	if err != nil {
		return err
	}
	defer socket.Close()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", procPath(socket))
	if err != nil {
		return err
	}
	return conn.Close()
}

// leader is the process id of the machine's PID 1: the only process of its init.scope, in the cgroup that
// PID 1 of the host names.
func (m *Manager) leader(ctx context.Context, slot string) (int, error) {
	p, err := m.Properties(ctx, paths.MachineUnit(slot))
	if err != nil {
		return 0, err
	}
	if p.ActiveState != "active" || p.ControlGroup == "" {
		return 0, fmt.Errorf("%w: machine %s does not run: %s is %s", ErrClosed, slot, paths.MachineUnit(slot), p.ActiveState)
	}
	pid, err := cgroup.Leader(p.ControlGroup)
	if err != nil {
		return 0, fmt.Errorf("machine %s: %w", slot, err)
	}
	return pid, nil
}

// insideSocket opens (O_PATH) the socket at path as process leader sees it. The pid may belong to another
// process by now: its root must be tree. Links in the tree cannot lead out of it. (openat2 would do
// in one step, but RestrictSUIDSGID= forbids it.)
func insideSocket(leader int, tree, path string) (*os.File, error) {
	own := "/proc/" + strconv.Itoa(leader) + "/root"
	root, err := os.OpenRoot(own)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	have, err := root.Stat(".")
	if err != nil {
		return nil, err
	}
	want, err := os.Stat(tree)
	if err != nil {
		return nil, err
	}
	if !os.SameFile(have, want) {
		return nil, fmt.Errorf("%s is not %s", own, tree)
	}
	folder, err := root.Open(filepath.Dir(strings.TrimPrefix(path, "/")))
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	fd, err := unix.Openat(int(folder.Fd()), filepath.Base(path), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	socket := os.NewFile(uintptr(fd), path)
	info, err := socket.Stat()
	if err == nil && info.Mode().Type() != fs.ModeSocket {
		err = fmt.Errorf("%s is not a socket", path)
	}
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return socket, nil
}

// procPath names an open file so that it can be dialled.
func procPath(file *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(file.Fd())) }
