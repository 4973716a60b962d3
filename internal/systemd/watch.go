package systemd

import "context"

// Watch looks at units again and again. It keeps them loaded, so that the results of a oneshot are there
// after it has ended, as long as the connection lives: one to systemd's own socket keeps nothing.
type Watch struct {
	manager *Manager
	held    []holder
}

// Watch returns a watch of units, which is to be closed.
func (m *Manager) Watch(units ...string) *Watch {
	w := &Watch{manager: m}
	for _, unit := range units {
		w.held = append(w.held, holder{unit: unit})
	}
	return w
}

// Look returns the properties of the units, in their order.
func (w *Watch) Look(ctx context.Context) ([]Properties, error) {
	all := make([]Properties, len(w.held))
	for i := range w.held {
		err := w.manager.do(ctx, func(ctx context.Context, s *session) error {
			w.held[i].on(ctx, s)
			return nil
		})
		if err != nil {
			return nil, err
		}
		if all[i], err = w.manager.Properties(ctx, w.held[i].unit); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Close lets go of the units.
func (w *Watch) Close(ctx context.Context) {
	for i := range w.held {
		w.held[i].release(ctx)
	}
}
