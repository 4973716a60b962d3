package systemd

import (
	"context"
	"fmt"

	sd "github.com/coreos/go-systemd/v22/dbus"
)

// Oneshot tells whether unit is a service that runs to its end and then counts as active. The unit is loaded.
func (m *Manager) Oneshot(ctx context.Context, unit string) (bool, error) {
	kind, err := ofType[string](ctx, m, unit, "Service", "Type")
	if err != nil || kind != "oneshot" {
		return false, err
	}
	return ofType[bool](ctx, m, unit, "Service", "RemainAfterExit")
}

// Area is the device or file that unit, a loaded swap unit, turns on, as its file says.
func (m *Manager) Area(ctx context.Context, unit string) (string, error) {
	return ofType[string](ctx, m, unit, "Swap", "What")
}

// ofType reads a property that only units of one type have.
func ofType[T any](ctx context.Context, m *Manager, unit, kind, name string) (value T, err error) {
	err = m.do(ctx, func(ctx context.Context, s *session) error {
		var p *sd.Property
		if p, err = s.units.GetUnitTypePropertyContext(ctx, unit, kind, name); err == nil {
			value, _ = p.Value.Value().(T)
		}
		return err
	})
	if err != nil {
		return value, fmt.Errorf("read %s of %s: %w", name, unit, err)
	}
	return value, nil
}
