package systemd

import (
	"context"
	"fmt"
)

// ListUnits returns the ActiveState of the loaded units whose names match one of the patterns (globs).
func (m *Manager) ListUnits(ctx context.Context, patterns ...string) (map[string]string, error) {
	units := map[string]string{}
	err := m.do(ctx, func(ctx context.Context, s *session) error {
		list, err := s.units.ListUnitsByPatternsContext(ctx, nil, patterns)
		for _, unit := range list {
			units[unit.Name] = unit.ActiveState
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list units %v: %w", patterns, err)
	}
	return units, nil
}
