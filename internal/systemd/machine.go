package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

const (
	machinedLimit = 2 * time.Second // a machined that cannot start is answered for by the bus after 25 s
	machinedUnit  = "systemd-machined.service"
	socketInside  = "run/dbus/system_bus_socket"
)

// What machined's silence means. Only Machine's found=false proves that no machine is registered.
var (
	// ErrNoMachined says that machined is not installed. It is absence only together with PID 1 saying
	// that the slot is inactive.
	ErrNoMachined = errors.New(machinedUnit + " is not installed")
	// ErrCannotTell says that machined is there and did not answer; the error names why.
	ErrCannotTell = errors.New("cannot tell whether the machine is registered")
)

// Machine asks machined for the machine called name: the process id of its PID 1 and its root directory.
func (m *Manager) Machine(ctx context.Context, name string) (leader uint32, root string, found bool, err error) {
	all, err := askMachined(ctx, name)
	switch errorName(err) {
	case "org.freedesktop.machine1.NoSuchMachine":
		return 0, "", false, nil
	case "org.freedesktop.DBus.Error.ServiceUnknown":
		return 0, "", false, fmt.Errorf("machine %s: %w", name, ErrNoMachined)
	}
	if err != nil {
		return 0, "", false, fmt.Errorf("machine %s: %w: %s: %w", name, ErrCannotTell, m.whyNoMachined(ctx), err)
	}
	leader, _ = all["Leader"].Value().(uint32)
	root, _ = all["RootDirectory"].Value().(string)
	if leader == 0 {
		return 0, "", false, fmt.Errorf("machine %s: %w: it has no leader", name, ErrCannotTell)
	}
	return leader, root, true, nil
}

// askMachined dials for itself: machined answers on the bus only, and the manager may be on systemd's own socket.
func askMachined(ctx context.Context, name string) (map[string]dbus.Variant, error) {
	limit, done := context.WithTimeout(ctx, machinedLimit)
	defer done()
	conn, err := greet(limit, busSocket, true)
	if err != nil {
		return nil, errors.Join(limit.Err(), err)
	}
	defer conn.Close() // only read from
	const service = "org.freedesktop.machine1"
	var path dbus.ObjectPath
	manager := conn.Object(service, "/org/freedesktop/machine1")
	if err := manager.CallWithContext(limit, service+".Manager.GetMachine", 0, name).Store(&path); err != nil {
		return nil, err
	}
	var all map[string]dbus.Variant
	err = conn.Object(service, path).
		CallWithContext(limit, "org.freedesktop.DBus.Properties.GetAll", 0, service+".Machine").Store(&all)
	if errorName(err) == "org.freedesktop.DBus.Error.UnknownObject" { // it ended between the two calls
		err = dbus.Error{Name: service + ".NoSuchMachine"}
	}
	return all, err
}

// whyNoMachined names the cause of an unanswered question, which PID 1 knows at once.
func (m *Manager) whyNoMachined(ctx context.Context) string {
	p, err := m.Properties(ctx, machinedUnit)
	switch {
	case err != nil:
		return "neither machined nor PID 1 was reached"
	case p.LoadState == "masked":
		return machinedUnit + " is masked; run `systemctl unmask " + machinedUnit + "`"
	case p.ActiveState == "failed":
		return machinedUnit + " has failed (" + p.Result + "); see `journalctl -u " + machinedUnit + "`"
	}
	return machinedUnit + " is " + p.ActiveState + " and does not answer"
}

// Inner returns the service manager that is PID 1 of the machine called name, reached through the bus socket
// in the machine's tree. m must stay open for as long as it is used; it ends with the machine:
// a machine that was started again meanwhile is another one (ErrClosed).
func (m *Manager) Inner(ctx context.Context, name string) (*Manager, error) {
	var first uint32
	return connect(ctx, func(ctx context.Context) (*session, error) {
		leader, root, found, err := m.Machine(ctx, name)
		switch {
		case err != nil:
			return nil, err
		case !found:
			return nil, fmt.Errorf("%w: machine %s has ended", ErrClosed, name)
		case first != 0 && leader != first:
			return nil, fmt.Errorf("%w: machine %s was started again", ErrClosed, name)
		}
		s, err := dialInner(ctx, leader, root)
		if err != nil {
			return nil, fmt.Errorf("machine %s (leader %d): %w; see `journalctl -M %s -b`", name, leader, err, name)
		}
		first = leader
		return s, nil
	})
}

// dialInner dials the bus below root as process leader sees it. The pid may have been given to another
// process: the root that is opened must be root. Links in the tree cannot lead out of it.
func dialInner(ctx context.Context, leader uint32, root string) (*session, error) {
	own := "/proc/" + strconv.FormatUint(uint64(leader), 10) + "/root"
	dir, err := unix.Open(own, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: own, Err: err}
	}
	defer unix.Close(dir)
	var have, want unix.Stat_t
	if err := errors.Join(unix.Fstat(dir, &have), unix.Stat(root, &want)); err != nil {
		return nil, fmt.Errorf("compare %s with %s: %w", own, root, err)
	}
	if have.Dev != want.Dev || have.Ino != want.Ino {
		return nil, fmt.Errorf("%s is not %s: the process is another one by now", own, root)
	}
	socket, err := unix.Openat2(dir, socketInside, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: own + "/" + socketInside, Err: err}
	}
	defer unix.Close(socket)
	s, err := open(ctx, "/proc/self/fd/"+strconv.Itoa(socket), true)
	if err != nil {
		return nil, fmt.Errorf("its bus, /%s, does not answer: %w", socketInside, err)
	}
	return s, nil
}
