package main

import (
	"context"
	"fmt"
	"time"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
	"unbounded/internal/restart"
	"unbounded/internal/slot"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

// services run in the machine, in the order in which they are started.
var services = [...]string{"containerd", "kubelet"}

const (
	serviceLimit = 90 * time.Second // of the start of one service
)

// machine is the one in the slot of this stage.
type machine struct {
	*stage.Env
	host *systemd.Manager
}

func converge(ctx context.Context, env *stage.Env) error {
	host, err := systemd.Connect(ctx)
	if err != nil {
		return err
	}
	defer host.Close()
	m := &machine{env, host}
	s := slot.Slot{Root: env.Root, Name: env.Slot, Host: host, Log: env.Log, Marks: m.marks()}
	if err := s.Run(ctx); err != nil {
		return err
	}
	return m.services(ctx)
}

func (m *machine) marks() []restart.Mark {
	marks := make([]restart.Mark, 0, len(services))
	for _, service := range services {
		marks = append(marks, restart.Of(m.Root, m.Slot, service))
	}
	return marks
}

// services makes the services in the machine run with their files as they are. The node stage of another
// start may change files meanwhile, so marks are looked for again at the end.
func (m *machine) services(ctx context.Context) error {
	inner, err := m.host.Inner(ctx, m.Slot)
	if err != nil {
		return err
	}
	defer inner.Close()
	for range 3 {
		if err := m.prepare(ctx, inner); err != nil {
			return fmt.Errorf("machine %s: %w", m.Slot, err)
		}
		for _, service := range services {
			if err := m.service(ctx, inner, service); err != nil {
				return fmt.Errorf("machine %s: %w; see `journalctl -M %s -u %s`", m.Slot, err, m.Slot, service)
			}
		}
		if again, err := m.pending(); err != nil || !again {
			return err
		}
	}
	return fmt.Errorf("machine %s: its files are changed again and again", m.Slot)
}

func (m *machine) pending() (bool, error) {
	for _, mark := range m.marks() {
		if pending, err := mark.Pending(); pending || err != nil {
			return pending, err
		}
	}
	return false, nil
}

// prepare makes the services start with the machine, and its manager read unit files that have changed: a
// drop-in in a new folder does not show there, so any mark counts.
func (m *machine) prepare(ctx context.Context, inner *systemd.Manager) error {
	reload, err := m.pending()
	if err != nil {
		return err
	}
	for _, service := range services {
		unit := service + ".service"
		p, err := inner.Properties(ctx, unit)
		if err != nil {
			return err
		}
		reload = reload || p.NeedDaemonReload || p.LoadState == "not-found"
		state, err := inner.UnitFileState(ctx, unit)
		if err != nil {
			return err
		}
		if state == "enabled" {
			continue
		}
		changed, err := inner.Enable(ctx, unit)
		if err != nil {
			return err
		}
		if changed {
			reload = true
			m.Log.Changed(unit, "starts with machine "+m.Slot)
			if err := durable.SyncDir(paths.Tree(m.Slot) + paths.MultiUserWants); err != nil {
				return err
			}
		}
	}
	if !reload {
		return nil
	}
	return inner.Reload(ctx)
}

// service starts or restarts one service if it has to, and waits until it can be used.
func (m *machine) service(ctx context.Context, inner *systemd.Manager, service string) error {
	limit, done := context.WithTimeoutCause(ctx, serviceLimit, fmt.Errorf("not up within %v", serviceLimit))
	defer done()
	mark := restart.Of(m.Root, m.Slot, service)
	marked, err := mark.Claim()
	if err != nil {
		return err
	}
	unit := service + ".service"
	p, err := inner.Properties(limit, unit)
	if err != nil {
		return err
	}
	what, err := planService(unit, p, marked)
	if err != nil {
		return err
	}
	if what != leave {
		if err := m.start(limit, inner, unit, what); err != nil {
			return err
		}
	}
	if unit == paths.ContainerdUnit { // kubelet needs it
		if err := m.host.WaitSocket(limit, m.Slot, paths.ContainerdSocket); err != nil {
			return err
		}
	}
	return mark.Done()
}

func (m *machine) start(ctx context.Context, inner *systemd.Manager, unit string, what action) error {
	systemd.Forget(ctx, inner, m.Log.Warn, unit)
	m.Log.Status("wait for %s in machine %s to start", unit, m.Slot)
	ask, how := inner.Start, "started"
	if what == restartIt {
		ask, how = inner.Restart, "restarted: its files changed"
	}
	p, err := ask(ctx, unit)
	switch {
	case err != nil:
		return err
	case !p.Runs() && !p.ConditionResult:
		return fmt.Errorf("start %s: a condition of the unit is not met", unit)
	}
	m.Log.Changed(m.Slot+"/"+unit, how)
	return nil
}

// action is what to do with a service in the machine.
type action int

const (
	leave action = iota
	startIt
	restartIt
)

// planService says what makes a service in the machine run with its files as they are. marked is that
// they have changed since it was started.
func planService(unit string, p systemd.Properties, marked bool) (action, error) {
	switch {
	case p.LoadState == "masked":
		return leave, fmt.Errorf("%s is masked in the machine", unit)
	case p.LoadState != "loaded":
		return leave, fmt.Errorf("%s cannot be loaded in the machine (%s)", unit, p.LoadState)
	case marked:
		return restartIt, nil
	case p.ActiveState == "active", p.ActiveState == "reloading", p.ActiveState == "refreshing":
		return leave, nil
	}
	return startIt, nil
}
