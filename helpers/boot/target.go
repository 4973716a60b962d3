package main

import (
	"context"
	"errors"

	"unbounded/internal/exit"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

// target is unbounded-bootstrap.target of this host.
type target struct{ root string }

func (t *target) attempt(ctx context.Context) outcome {
	manager, err := systemd.Connect(ctx)
	if err != nil {
		return outcome{err: err}
	}
	defer manager.Close()
	before, err := stages(ctx, manager)
	if err != nil {
		return outcome{err: err}
	}
	_, err = manager.Start(ctx, paths.Target)
	if errors.Is(err, systemd.ErrNoUnit) || errors.Is(err, systemd.ErrMasked) {
		return outcome{err: exit.As(exit.Refused, err)}
	}
	if err == nil {
		return outcome{}
	}
	after, unread := stages(ctx, manager)
	return outcome{errors.Join(err, unread), failed(before, after)}
}

// stages are the properties of all stages, by unit. One that failed keeps them until it is started again.
func stages(ctx context.Context, manager *systemd.Manager) (map[string]systemd.Properties, error) {
	all := map[string]systemd.Properties{}
	for _, unit := range paths.StageUnits(paths.Slots()[0]) {
		p, err := manager.Properties(ctx, unit)
		if err != nil {
			return nil, err
		}
		all[unit] = p
	}
	return all, nil
}

// failed are the stages, in start order, that failed in an attempt between before and after. One that
// the attempt did not get to still shows the failure of an earlier attempt: it was not invoked anew.
func failed(before, after map[string]systemd.Properties) []ended {
	var all []ended
	for _, unit := range paths.StageUnits(paths.Slots()[0]) {
		now := after[unit]
		if now.ActiveState == "failed" && now.InvocationID != before[unit].InvocationID {
			all = append(all, ended{unit, now.ExecMainCode, now.ExecMainStatus})
		}
	}
	return all
}
