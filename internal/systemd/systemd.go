// Package systemd speaks to service managers over D-Bus: the host's, and the one inside a machine.
//
// Jobs are waited for in a way that survives daemon-reload, daemon-reexec and a restart of
// the bus; nothing here waits longer than its context, and single calls not longer than
// callLimit. Users declare the interface that they need; *Manager satisfies it.
//
// The package is larger than others because it owns go-systemd and everything that is
// asked of PID 1: connection (systemd.go), units (unit.go), jobs (job.go), and the two
// questions about machines that need all of it (slot.go, machine.go).
package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"unbounded/internal/paths"
)

const (
	privateSocket = "/run/systemd/private"

	dialLimit = 5 * time.Second
	callLimit = 25 * time.Second       // D-Bus' own default
	recheck   = 200 * time.Millisecond // between two looks at what should have been signalled
)

// Errors that callers act on; the manager's own words follow them in the chain's text.
var (
	ErrNoUnit = errors.New("no such unit")
	ErrMasked = errors.New("unit is masked")
	ErrClosed = errors.New("connection to systemd is closed")
)

// Manager is a connection to a service manager. It dials again by itself when the
// connection was lost. It is safe for concurrent use.
type Manager struct {
	dial func(context.Context) (*session, error)

	mu      sync.Mutex
	session *session
	closed  bool
}

// Connect returns the host's service manager, reached by the system bus or, for root, by
// systemd's own socket when the bus is away. ctx limits the dial, not the connection's life.
func Connect(ctx context.Context) (*Manager, error) {
	m, err := connect(ctx, dialHost)
	if err != nil {
		return nil, fmt.Errorf("connect to systemd: %w", err)
	}
	return m, nil
}

func connect(ctx context.Context, dial func(context.Context) (*session, error)) (*Manager, error) {
	s, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	return &Manager{dial: dial, session: s}, nil
}

// Close ends the connection. Jobs go on.
func (m *Manager) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.session != nil {
		m.session.close()
	}
}

// session is one life of a connection.
type session struct {
	units *sd.Conn
	calls *dbus.Conn // what units makes its calls on: references to units are bound to it
	end   context.CancelFunc
}

func (s *session) alive() bool { return s.units.Connected() }

func (s *session) close() {
	s.units.Close()
	s.end()
}

func dialHost(ctx context.Context) (*session, error) {
	s, err := open(ctx, paths.SystemBus, true)
	if err == nil {
		return s, nil
	}
	err = fmt.Errorf("the bus %s does not answer: %w", paths.SystemBus, err)
	if ctx.Err() != nil || os.Geteuid() != 0 {
		return nil, err
	}
	s, private := open(ctx, privateSocket, false)
	if private != nil {
		return nil, fmt.Errorf("%w, nor does %s: %w", err, privateSocket, private)
	}
	return s, nil
}

// open dials a socket. The context given to the library is the connection's life, so the
// limit of the dial is a timer that is taken away once the connection is there.
func open(ctx context.Context, socket string, bus bool) (*session, error) {
	limit, done := context.WithTimeout(ctx, dialLimit)
	defer done()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	keep := context.AfterFunc(limit, end)

	var calls *dbus.Conn // go-systemd dials twice: the first is for calls, the second for signals
	units, err := sd.NewConnection(func() (*dbus.Conn, error) {
		conn, err := greet(life, socket, bus)
		if calls == nil {
			calls = conn
		}
		return conn, err
	})
	if !keep() && err == nil {
		units.Close()
		err = limit.Err()
	}
	if err != nil {
		end()
		if limit.Err() != nil {
			err = limit.Err()
		}
		return nil, err
	}
	return &session{units: units, calls: calls, end: end}, nil
}

func greet(life context.Context, socket string, bus bool) (*dbus.Conn, error) {
	conn, err := dbus.Dial("unix:path="+socket, dbus.WithContext(life))
	if err != nil {
		return nil, err
	}
	// The numeric id needs no look-up of a user.
	err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))})
	if err == nil && bus {
		err = conn.Hello()
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// live returns the session, a new one when the last was lost.
func (m *Manager) live(ctx context.Context) (*session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	if m.session.alive() {
		return m.session, nil
	}
	s, err := m.dial(ctx)
	if err != nil {
		return nil, err
	}
	m.session.close()
	m.session = s
	return s, nil
}

// do calls f on a live session, again while the connection or its other end goes away
// under it, for callLimit at most. What f asks for must be right to ask twice.
func (m *Manager) do(ctx context.Context, f func(context.Context, *session) error) error {
	limit, done := context.WithTimeout(ctx, callLimit)
	defer done()
	for {
		s, err := m.live(limit)
		if errors.Is(err, ErrClosed) {
			return err
		}
		if err == nil {
			if err = f(limit, s); err == nil || !s.lost(err) {
				return named(err)
			}
		}
		select {
		case <-limit.Done():
			return err
		case <-time.After(recheck):
		}
	}
}

// lost tells whether err says that a bus, or systemd behind it, was away for the moment.
func (s *session) lost(err error) bool {
	var answer dbus.Error
	if !errors.As(err, &answer) {
		return !s.alive() || broken(err)
	}
	switch answer.Name {
	case "org.freedesktop.DBus.Error.NoReply", "org.freedesktop.DBus.Error.Disconnected",
		"org.freedesktop.DBus.Error.NameHasNoOwner", "org.freedesktop.DBus.Error.ServiceUnknown":
		return true
	}
	// systemd's name is activatable by a program that always fails.
	return strings.HasPrefix(answer.Name, "org.freedesktop.DBus.Error.Spawn.")
}

// broken tells whether err is that of a socket whose other end has gone: the session learns of it a moment later.
func broken(err error) bool {
	for _, gone := range []error{syscall.EPIPE, syscall.ECONNRESET, io.EOF, net.ErrClosed} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

// named puts our errors in front of the manager's words, whose text differs between versions.
func named(err error) error {
	switch errorName(err) {
	case "org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.DBus.Error.FileNotFound":
		return fmt.Errorf("%w: %w", ErrNoUnit, err)
	case "org.freedesktop.systemd1.UnitMasked":
		return fmt.Errorf("%w: %w", ErrMasked, err)
	}
	return err
}

// errorName is the D-Bus name of err, "" if it is none of D-Bus'.
func errorName(err error) string {
	var answer dbus.Error
	if errors.As(err, &answer) {
		return answer.Name
	}
	return ""
}
