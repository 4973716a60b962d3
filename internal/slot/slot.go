// Package slot makes the machine of a slot run on the host, now and after every boot, and takes it off the host again.
//
// What a start needs of the host is planned from what PID 1 says (plan.go) and done step by step. Both directions
// are here (remove.go is the other) because they must agree on what a machine leaves: hence the length.
package slot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"unbounded/internal/before"
	"unbounded/internal/cgroup"
	"unbounded/internal/durable"
	"unbounded/internal/journal"
	"unbounded/internal/machined"
	"unbounded/internal/paths"
	"unbounded/internal/restart"
	"unbounded/internal/systemd"
)

const (
	bootLimit  = 5 * time.Minute  // of the machine: the start job ends when all in it is up
	clearLimit = 15 * time.Second // of what a dead machine left
	targetLink = paths.SystemdDir + "/multi-user.target.wants/" + machinesTarget
	nspawnRun  = "/run/systemd/nspawn/"
	unixExport = nspawnRun + "unix-export/" // one mount for each machine, since systemd 256
)

// Slot is a slot of the host below Root, with its machine.
type Slot struct {
	Root string
	Name string // kube1 or kube2
	Host *systemd.Manager
	Log  *journal.Log
	// Marks are of the services in the machine: a start of it has their files as they are.
	Marks []restart.Mark
}

func (m *Slot) unit() string { return paths.MachineUnit(m.Name) }

// Run makes the machine run. A start that fails is tried once more, after looking again: what a killed
// nspawn left may show only then.
func (m *Slot) Run(ctx context.Context) error {
	changed, err := durable.Mark(paths.At(m.Root, paths.RunSlot) + "/" + m.Name)
	if err != nil {
		return err
	}
	if changed {
		m.Log.Changed(paths.RunSlot+"/"+m.Name, "this slot may run in this boot")
	}
	for again := true; ; again = false {
		have, err := m.look(ctx)
		if err != nil {
			return err
		}
		steps, err := planHost(have)
		if err != nil {
			return err
		}
		err = m.act(ctx, steps)
		if _, failed := errors.AsType[*systemd.JobError](err); failed && again {
			m.Log.Warn("machine %s: %v, trying once more", m.Name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("machine %s: %w", m.Name, err)
		}
		return nil
	}
}

func (m *Slot) look(ctx context.Context) (host, error) {
	h := host{slot: m.Name}
	for _, slot := range paths.Slots() {
		if slot != m.Name {
			h.other = slot
		}
	}
	other, err := m.Host.Properties(ctx, paths.MachineUnit(h.other))
	if err != nil {
		return host{}, err
	}
	h.otherStable = other.Job == 0 && other.ActiveState == "active"
	if h.otherRuns, err = m.Host.SlotRuns(ctx, h.other); err != nil {
		return host{}, err
	}
	if h.unit, err = m.Host.Properties(ctx, m.unit()); err != nil {
		return host{}, err
	}
	registrar, err := m.Host.Properties(ctx, paths.MachinedUnit)
	if err != nil {
		return host{}, err
	}
	h.noMachined = registrar.LoadState == "masked"
	_, err = os.Lstat(paths.At(m.Root, paths.DropInFile(m.Name)))
	h.dropIn = err == nil
	if h.unitFile, err = m.Host.UnitFileState(ctx, m.unit()); err != nil && !errors.Is(err, systemd.ErrNoUnit) {
		return host{}, err
	}
	h.targetFile, err = m.Host.UnitFileState(ctx, machinesTarget)
	if errors.Is(err, systemd.ErrNoUnit) {
		err = nil
	}
	return h, err
}

func (m *Slot) act(ctx context.Context, steps []step) error {
	for _, step := range steps {
		var err error
		switch step {
		case enableTarget:
			err = m.enableTarget(ctx)
		case enable:
			err = m.enable(ctx, m.unit(), paths.SystemdDir+"/"+machinesTarget+".wants")
		case reload:
			err = m.Host.Reload(ctx)
		case stop:
			_, err = m.Host.Stop(ctx, m.unit())
		case resetFailed:
			systemd.Forget(ctx, m.Host, m.Log.Warn, m.unit())
		case clean:
			err = m.clean(ctx)
		case start:
			err = m.start(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// enable makes unit start at boot, durably: systemd does not sync its links in folder.
func (m *Slot) enable(ctx context.Context, unit, folder string) error {
	changed, err := m.Host.Enable(ctx, unit)
	if err != nil || !changed {
		return err
	}
	m.Log.Changed(unit, "starts at boot")
	return errors.Join(durable.SyncDir(folder), durable.SyncDir(paths.SystemdDir))
}

// enableTarget changes what is the host owner's, so it is saved first.
func (m *Slot) enableTarget(ctx context.Context) error {
	target, err := m.Host.Properties(ctx, machinesTarget)
	if err != nil {
		return err
	}
	now, err := before.Read(m.Root, targetLink)
	if err != nil {
		return err
	}
	image, err := before.Load(m.Root, "machine")
	if err != nil {
		return err
	}
	image.Note(before.Change{Kind: before.File, Object: targetLink, Now: now, Want: before.State{Link: target.FragmentPath}})
	if err := image.Save(); err != nil {
		return err
	}
	return m.enable(ctx, machinesTarget, filepath.Dir(targetLink))
}

// clean takes away what a killed nspawn leaves and a new one trips over. machined may be away: then
// nspawn itself says so.
func (m *Slot) clean(ctx context.Context) error {
	limit, done := context.WithTimeout(ctx, clearLimit)
	defer done()
	// systemd has killed them; it does not wait for their end.
	if err := cgroup.AwaitEmpty(limit, cgroup.Machine(m.unit())); err != nil {
		return fmt.Errorf("processes of a dead machine are left: %w; run `systemctl kill -s KILL %s`", err, m.unit())
	}
	forgotten, err := machined.Forget(ctx, m.Name, m.unit())
	switch {
	case err != nil:
		m.Log.Notice("clear what a dead machine left: %v, ignoring", err)
	case forgotten:
		m.Log.Changed(m.Name, "cleared the registration of a dead machine")
	}
	return unmountStale(m.Root, m.Name, m.Log)
}

// unmountStale unmounts what systemd from 256 on leaves when a machine is killed.
func unmountStale(root, name string, log *journal.Log) error {
	stale := unixExport + name
	switch err := unix.Unmount(paths.At(root, stale), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); {
	case err == nil:
		log.Changed(stale, "unmounted what a dead machine left")
	case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT): // no mount, no folder
		return fmt.Errorf("unmount %s: %w", stale, err)
	}
	return nil
}

// start starts the machine and waits until it is up. Its services then have the files that are there now.
func (m *Slot) start(ctx context.Context) error {
	for _, mark := range m.Marks {
		if _, err := mark.Claim(); err != nil {
			return err
		}
	}
	m.Log.Status("wait for machine %s to start", m.Name)
	limit, done := context.WithTimeoutCause(ctx, bootLimit, fmt.Errorf("not up within %v", bootLimit))
	defer done()
	p, err := m.Host.Start(limit, m.unit())
	switch {
	case err != nil:
		return fmt.Errorf("%w; see `journalctl -u %s`", err, m.unit())
	case p.ActiveState != "active" && !p.ConditionResult:
		return fmt.Errorf("start %s: a condition of the unit is not met; see `systemctl status %s`", m.unit(), m.unit())
	case p.ActiveState != "active":
		return fmt.Errorf("start %s: it is %s at once (%s); see `journalctl -u %s`", m.unit(), p.ActiveState, p.Result, m.unit())
	}
	m.Log.Changed(m.unit(), "started")
	for _, mark := range m.Marks {
		if err := mark.Done(); err != nil {
			return err
		}
	}
	return nil
}
