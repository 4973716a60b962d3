package machined

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	bus      = "org.freedesktop.DBus"
	busLimit = 25 * time.Second // D-Bus' own default: a bus that reads its files again answers nobody else
)

// Known makes the system bus know machined, whose package may have been installed a moment ago, and tells
// whether it had to. dbus-broker reads its services when it starts or is told to; dbus-daemon also when it is asked
// for one that it does not know. machined is not started. ErrNone says that the bus does not find it on disk.
func Known(ctx context.Context) (reloaded bool, err error) {
	err = callWithin(ctx, busLimit, func(ctx context.Context, conn *dbus.Conn) error {
		known, err := activatable(ctx, conn)
		if known || err != nil {
			return err
		}
		if err := conn.BusObject().CallWithContext(ctx, bus+".ReloadConfig", 0).Store(); err != nil {
			return fmt.Errorf("reload the system bus: %w", err)
		}
		reloaded = true
		known, err = activatable(ctx, conn)
		if err == nil && !known {
			err = ErrNone
		}
		return err
	})
	return reloaded, err
}

func activatable(ctx context.Context, conn *dbus.Conn) (bool, error) {
	var names []string
	if err := conn.BusObject().CallWithContext(ctx, bus+".ListActivatableNames", 0).Store(&names); err != nil {
		return false, fmt.Errorf("list the services of the system bus: %w", err)
	}
	return slices.Contains(names, service), nil
}
