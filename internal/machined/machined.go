// Package machined asks systemd-machined which machines are registered.
//
// machined only confirms: whether a slot runs is PID 1's to say (package systemd). Only a
// plain "no such machine" is absence; whatever else machined says or does not say
// is an error.
package machined

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/godbus/dbus/v5"

	"unbounded/internal/paths"
)

const (
	service = "org.freedesktop.machine1"
	limit   = 2 * time.Second // a machined that cannot start is answered for by the bus after 25 s
)

// ErrNone says that machined is not installed. That is absence of machines only together with PID 1
// saying that the slot is inactive.
var ErrNone = errors.New(paths.MachinedUnit + " is not installed")

// Machine is a registered machine.
type Machine struct {
	Leader uint32 // process id of its PID 1
	Root   string
	Unit   string // that runs it
}

// Find returns the machine called name and whether there is one.
func Find(ctx context.Context, name string) (Machine, bool, error) {
	var all map[string]dbus.Variant
	err := call(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		var path dbus.ObjectPath
		manager := conn.Object(service, "/org/freedesktop/machine1")
		if err := manager.CallWithContext(ctx, service+".Manager.GetMachine", 0, name).Store(&path); err != nil {
			return err
		}
		return conn.Object(service, path).
			CallWithContext(ctx, "org.freedesktop.DBus.Properties.GetAll", 0, service+".Machine").Store(&all)
	})
	switch {
	case absent(err):
		return Machine{}, false, nil
	case err != nil:
		return Machine{}, false, err
	}
	var m Machine
	m.Leader, _ = all["Leader"].Value().(uint32)
	m.Root, _ = all["RootDirectory"].Value().(string)
	m.Unit, _ = all["Unit"].Value().(string)
	if m.Leader == 0 {
		return Machine{}, false, fmt.Errorf("machine %s has no leader", name)
	}
	return m, true, nil
}

// RegisteredError says that machined knows a machine and was not made to forget it.
type RegisteredError struct{ Why string }

// Error is the whole message.
func (e *RegisteredError) Error() string { return e.Why }

// Forget unregisters the machine called name, whose unit PID 1 says does not run, and tells whether it was
// registered. machined keeps a machine while its unit waits for an automatic restart, and refuses
// the restarted one by that: "Machine already exists". A machine of another unit is left alone. That a machine
// is registered in the end is a *RegisteredError; any other error means that machined did not answer.
func Forget(ctx context.Context, name, unit string) (bool, error) {
	m, found, err := Find(ctx, name)
	if err != nil || !found {
		return false, err
	}
	if m.Unit != unit {
		return false, &RegisteredError{fmt.Sprintf(
			"machine %s is registered by %s, not by %s: stop it with `machinectl terminate %s`", name, m.Unit, unit, name)}
	}
	err = call(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		return conn.Object(service, "/org/freedesktop/machine1").
			CallWithContext(ctx, service+".Manager.UnregisterMachine", 0, name).Store()
	})
	if err != nil && !absent(err) {
		return false, &RegisteredError{fmt.Sprintf("unregister machine %s: %v", name, err)}
	}
	return true, nil
}

// call calls f with a bus connection of its own, for limit at most.
func call(ctx context.Context, f func(context.Context, *dbus.Conn) error) error {
	return callWithin(ctx, limit, f)
}

func callWithin(ctx context.Context, limit time.Duration, f func(context.Context, *dbus.Conn) error) error {
	ctx, done := context.WithTimeout(ctx, limit)
	defer done()
	conn, err := dbus.Connect("unix:path="+paths.SystemBus, dbus.WithContext(ctx),
		// The numeric id needs no look-up of a user.
		dbus.WithAuth(dbus.AuthExternal(strconv.Itoa(os.Geteuid()))))
	if err != nil {
		return fmt.Errorf("the system bus does not answer: %w", errors.Join(ctx.Err(), err))
	}
	err = errors.Join(f(ctx, conn), conn.Close())
	if errorName(err) == "org.freedesktop.DBus.Error.ServiceUnknown" {
		return ErrNone
	}
	return err
}

func absent(err error) bool {
	name := errorName(err)
	return name == service+".NoSuchMachine" ||
		name == "org.freedesktop.DBus.Error.UnknownObject" // it ended between two calls
}

func errorName(err error) string {
	var answer dbus.Error
	if errors.As(err, &answer) {
		return answer.Name
	}
	return ""
}
