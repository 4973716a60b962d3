package systemd

import (
	"context"
	"errors"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// lookAgain is between two looks without a signal: one may be lost with its bus, or come before it was asked for.
const lookAgain = 10 * time.Second

// Until waits, however long it takes, until done is true of unit, and returns the properties of which it was. It looks when
// systemd says that the unit has changed. A bus that is away is waited for too.
func (m *Manager) Until(ctx context.Context, unit string, done func(Properties) bool) (Properties, error) {
	held := holder{unit: unit}
	defer held.release(ctx)
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	var changed <-chan *dbus.Signal
	for {
		err := m.do(ctx, func(ctx context.Context, s *session) error {
			if held.by != s {
				held.on(ctx, s)
				changed = s.hear(ctx, unit)
			}
			return nil
		})
		if err == nil {
			var p Properties
			if p, err = m.Properties(ctx, unit); err == nil && done(p) {
				return p, nil
			}
		}
		if errors.Is(err, ErrClosed) {
			return Properties{}, err
		}
		select {
		case <-ctx.Done():
			return Properties{}, context.Cause(ctx)
		case _, open := <-changed:
			if !open { // with its connection
				changed = nil
			}
		case <-tick.C:
		}
	}
}

// hear has changes of unit signalled for as long as the connection lives. Where it cannot, as on systemd's own
// socket, the caller looks now and then, so errors are ignored.
func (s *session) hear(ctx context.Context, unit string) <-chan *dbus.Signal {
	changed := make(chan *dbus.Signal, 16)
	s.calls.Signal(changed)
	_ = s.calls.AddMatchSignalContext(ctx,
		dbus.WithMatchObjectPath(dbus.ObjectPath("/org/freedesktop/systemd1/unit/"+sd.PathBusEscape(unit))),
		dbus.WithMatchInterface("org.freedesktop.DBus.Properties"), dbus.WithMatchMember("PropertiesChanged"))
	_ = s.manager(ctx, "Subscribe").Err
	return changed
}
