package systemd

import (
	"context"
	"errors"
	"fmt"

	"unbounded/internal/cgroup"
	"unbounded/internal/machined"
	"unbounded/internal/paths"
)

// What machined's silence means. Only Machine's found=false proves that no machine is registered.
var (
	// ErrNoMachined says that machined is not installed. It is absence only together with PID 1 saying
	// that the slot is inactive.
	ErrNoMachined = machined.ErrNone
	// ErrCannotTell says that machined is there and did not answer; the error names why.
	ErrCannotTell = errors.New("cannot tell whether the machine is registered")
)

// SlotRuns tells whether slot runs: its systemd-nspawn@ unit is not inactive or failed, or has a job,
// or processes are left in its cgroup. A unit that is not there does not run. PID 1 always
// can answer, whatever became of machined; an error means that it was not reached.
func (m *Manager) SlotRuns(ctx context.Context, slot string) (bool, error) {
	unit := paths.MachineUnit(slot)
	p, err := m.Properties(ctx, unit)
	if err != nil {
		return false, fmt.Errorf("ask whether %s runs: %w", slot, err)
	}
	if p.Runs() {
		return true, nil
	}
	// systemd forgets the cgroup of a unit that has failed: the second is where its template puts it.
	full, err := cgroup.Populated(p.ControlGroup, cgroup.Machine(unit))
	if err != nil {
		return false, fmt.Errorf("ask whether %s runs: %w", slot, err)
	}
	return full, nil
}

// Machine asks machined for the machine called name: the process id of its PID 1 and its root directory.
func (m *Manager) Machine(ctx context.Context, name string) (leader uint32, root string, found bool, err error) {
	machine, found, err := machined.Find(ctx, name)
	switch {
	case errors.Is(err, ErrNoMachined):
		err = fmt.Errorf("machine %s: %w", name, err)
	case err != nil:
		err = fmt.Errorf("machine %s: %w: %s: %w", name, ErrCannotTell, m.WhyNoMachined(ctx), err)
	}
	return machine.Leader, machine.Root, found, err
}

// Registered tells whether machined knows a machine of slot. Without machined there is none: PID 1 has the last
// word anyway (SlotRuns). Any other error means that it cannot be told.
func (m *Manager) Registered(ctx context.Context, slot string) (bool, error) {
	_, _, found, err := m.Machine(ctx, slot)
	if errors.Is(err, ErrNoMachined) {
		return false, nil
	}
	return found, err
}

// WhyNoMachined names the cause of an unanswered question, which PID 1 knows at once.
func (m *Manager) WhyNoMachined(ctx context.Context) string {
	p, err := m.Properties(ctx, paths.MachinedUnit)
	switch {
	case err != nil:
		return "neither machined nor PID 1 was reached"
	case p.LoadState == "masked":
		return paths.MachinedUnit + " is masked; run `systemctl unmask " + paths.MachinedUnit + "`"
	case p.ActiveState == "failed":
		return paths.MachinedUnit + " has failed (" + p.Result + "); see `journalctl -u " + paths.MachinedUnit + "`"
	}
	return paths.MachinedUnit + " is " + p.ActiveState + " and does not answer"
}
