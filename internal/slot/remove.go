package slot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"unbounded/internal/cgroup"
	"unbounded/internal/durable"
	"unbounded/internal/journal"
	"unbounded/internal/machined"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

const (
	stopLimit = 20 * time.Second // for a machine to stop when it is asked to; its own unit gives it 90 s
	killLimit = 15 * time.Second // for a killed one to be gone
	leftLimit = 2 * time.Second  // for what systemd has killed itself
	stopTries = 5                // somebody may start it again meanwhile

	machinedRun = "/run/systemd/machines/" // a note for each machine, and a link to it from its unit
)

// manager is what a removal asks of the host's service manager.
type manager interface {
	Properties(ctx context.Context, unit string) (systemd.Properties, error)
	Disable(ctx context.Context, unit string) (bool, error)
	Stop(ctx context.Context, unit string) (systemd.Properties, error)
	Kill(ctx context.Context, unit string, signal syscall.Signal) error
	ResetFailed(ctx context.Context, unit string) error
	Reload(ctx context.Context) error
	WhyNoMachined(ctx context.Context) string
}

// processes are those in cgroups.
type processes interface {
	AwaitEmpty(ctx context.Context, groups ...string) error
	Kill(groups ...string) error
	Processes(groups ...string) []string
}

// Removal takes the machine of a slot off the host below root, as far as it is systemd's: what
// runs, what is registered and what starts at boot. Its files stay.
type Removal struct {
	root, name, unit string
	host             manager
	groups           processes
	forget           func(ctx context.Context, name, unit string) (bool, error)
	log              *journal.Log

	stopLimit, killLimit, leftLimit time.Duration
}

// Remove is the removal of the machine called name.
func Remove(root, name string, host *systemd.Manager, log *journal.Log) *Removal {
	return &Removal{
		root: root, name: name, unit: paths.MachineUnit(name), host: host,
		groups: kernel{}, forget: machined.Forget, log: log,
		stopLimit: stopLimit, killLimit: killLimit, leftLimit: leftLimit,
	}
}

type kernel struct{}

func (kernel) AwaitEmpty(ctx context.Context, groups ...string) error {
	return cgroup.AwaitEmpty(ctx, groups...)
}
func (kernel) Kill(groups ...string) error         { return cgroup.Kill(groups...) }
func (kernel) Processes(groups ...string) []string { return cgroup.Processes(groups...) }

// Run is right to repeat; a slot without a machine changes nothing. When it ends without an error PID 1 says that
// the machine does not run and will not at boot, its cgroup is empty, and machined, if it
// answers, does not know it.
func (r *Removal) Run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{r.disable, r.stop, r.unregister, r.debris, r.sweep} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *Removal) disable(ctx context.Context) error {
	changed, err := r.host.Disable(ctx, r.unit)
	if err != nil {
		return err
	}
	// systemd leaves the link of a unit that is masked or whose template is not there any more.
	wants := paths.At(r.root, paths.SystemdDir+"/"+machinesTarget+".wants")
	left, err := durable.Remove(filepath.Join(wants, r.unit))
	if err != nil {
		return err
	}
	if !changed && !left {
		return r.reread(ctx)
	}
	r.log.Changed(r.unit, "does not start at boot any more")
	if left {
		if err := os.Remove(wants); err != nil && !errors.Is(err, syscall.ENOTEMPTY) { // as systemd does
			return err
		}
	} else if err := durable.SyncDir(wants); err != nil && !errors.Is(err, fs.ErrNotExist) { // systemd does not sync
		return err
	}
	return errors.Join(durable.SyncDir(paths.At(r.root, paths.SystemdDir)), r.host.Reload(ctx))
}

// reread has systemd forget the link if an earlier run was killed between removing it and that.
func (r *Removal) reread(ctx context.Context) error {
	p, err := r.host.Properties(ctx, r.unit)
	if err != nil || !strings.HasPrefix(p.UnitFileState, "enabled") {
		return err
	}
	return r.host.Reload(ctx)
}

// stop ends when the unit is inactive or failed, has no job, and its cgroup is empty. Shims of a dead
// containerd are in that cgroup too.
func (r *Removal) stop(ctx context.Context) error {
	p, err := r.host.Properties(ctx, r.unit)
	if err != nil {
		return err
	}
	// systemd forgets the cgroup of a unit that has failed: the second is where its template puts it.
	groups := []string{p.ControlGroup, cgroup.Machine(r.unit)}
	ran := p.Runs()
	for try := 0; p.Runs(); try++ {
		if try == stopTries {
			return fmt.Errorf("machine %s is started again and again: %s is %s; find out by whom with `journalctl -u %s`", r.name, r.unit, p.ActiveState, r.unit)
		}
		if err := r.halt(ctx, groups); err != nil {
			return err
		}
		if p, err = r.host.Properties(ctx, r.unit); err != nil {
			return err
		}
	}
	if err := r.empty(ctx, groups); err != nil {
		return err
	}
	if ran {
		r.log.Changed(r.unit, "stopped")
	}
	if p.ActiveState != "failed" {
		return nil
	}
	if err := r.host.ResetFailed(ctx, r.unit); err != nil { // some systems deny it by policy
		r.log.Notice("%v, ignoring: it shows as failed until the host reboots", err)
	}
	return nil
}

// halt has PID 1 stop the machine, and kills one that does not heed it. How the job ended is seen from the unit.
func (r *Removal) halt(ctx context.Context, groups []string) error {
	r.log.Status("wait for machine %s to stop, %v at most", r.name, r.stopLimit)
	late, err := r.ask(ctx, r.stopLimit)
	if !late {
		return err
	}
	r.log.Warn("machine %s has not stopped within %v, killing it", r.name, r.stopLimit)
	r.log.Status("wait for the killed machine %s to be gone, %v at most", r.name, r.killLimit)
	if err := r.host.Kill(ctx, r.unit, syscall.SIGKILL); err != nil {
		return err
	}
	late, err = r.ask(ctx, r.killLimit)
	if late {
		return r.stuck(groups, err)
	}
	return err
}

// ask asks for the stop of the machine and tells whether that takes longer than limit.
func (r *Removal) ask(ctx context.Context, limit time.Duration) (late bool, err error) {
	within, done := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %v", limit))
	defer done()
	_, err = r.host.Stop(within, r.unit)
	if _, ended := errors.AsType[*systemd.JobError](err); ended {
		return false, nil
	}
	return err != nil && within.Err() != nil && ctx.Err() == nil, err
}

func (r *Removal) empty(ctx context.Context, groups []string) error {
	full, err := r.full(ctx, r.leftLimit, groups)
	if err != nil || !full {
		return err
	}
	r.log.Warn("machine %s is dead and has left processes, killing them: %s", r.name, r.list(groups))
	r.log.Status("wait for the processes of machine %s to be gone, %v at most", r.name, r.killLimit)
	if err := r.groups.Kill(groups...); err != nil {
		return err
	}
	full, err = r.full(ctx, r.killLimit, groups)
	if full {
		return r.stuck(groups, fmt.Errorf("not within %v", r.killLimit))
	}
	return err
}

// full tells whether groups have processes for longer than limit.
func (r *Removal) full(ctx context.Context, limit time.Duration, groups []string) (bool, error) {
	within, done := context.WithTimeout(ctx, limit)
	defer done()
	err := r.groups.AwaitEmpty(within, groups...)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return true, nil
	}
	return false, err
}

func (r *Removal) stuck(groups []string, err error) error {
	return fmt.Errorf("kill machine %s: %w: processes %s do not end; see what they wait for, or reboot, then reset again", r.name, err, r.list(groups))
}

// list names processes in groups, not too many.
func (r *Removal) list(groups []string) string {
	all := r.groups.Processes(groups...)
	if len(all) > 5 {
		all = append(all[:5], "…")
	}
	return strings.Join(all, ", ")
}

// unregister makes machined forget the machine. PID 1 has said that it does not run, so a machined that is
// masked or fails is passed over; one that answers has to obey.
func (r *Removal) unregister(ctx context.Context) error {
	scope := "machine-" + r.name + ".scope" // of one that was started by hand
	p, err := r.host.Properties(ctx, scope)
	if err != nil {
		return err
	}
	if p.Runs() {
		return fmt.Errorf("machine %s runs, started by hand: stop it with `systemctl stop %s`", r.name, scope)
	}
	forgotten, err := r.forget(ctx, r.name, r.unit)
	if _, registered := errors.AsType[*machined.RegisteredError](err); registered {
		return err
	}
	if err == nil {
		if forgotten {
			r.log.Changed(r.name, "unregistered")
		}
		return nil
	}
	if !errors.Is(err, machined.ErrNone) {
		r.log.Notice("machine %s may be registered (%s: %v), ignoring: systemd says that it does not run", r.name, r.host.WhyNoMachined(ctx), err)
	}
	return r.erase(ctx)
}

// erase removes the notes of a machined that is away, which would take the machine for running when it comes back.
func (r *Removal) erase(ctx context.Context) error {
	p, err := r.host.Properties(ctx, paths.MachinedUnit)
	if err != nil || p.Runs() {
		return err
	}
	note := machinedRun + r.name
	text, err := os.ReadFile(paths.At(r.root, note))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !strings.Contains(string(text), "\nSCOPE="+r.unit+"\n") {
		return nil
	}
	if err != nil {
		return err
	}
	return r.remove(machinedRun+"unit:"+r.unit, note)
}

// debris removes what a killed nspawn leaves.
func (r *Removal) debris(context.Context) error {
	if err := unmountStale(r.root, r.name, r.log); err != nil {
		return err
	}
	err := r.remove(unixExport+r.name, nspawnRun+"propagate/"+r.name)
	if errors.Is(err, syscall.ENOTEMPTY) {
		r.log.Notice("%s is not empty and stays until the host reboots", nspawnRun+"propagate/"+r.name)
		return nil
	}
	return err
}

// sweep removes what was only for this boot.
func (r *Removal) sweep(context.Context) error {
	gone := []string{paths.RunSlot + "/" + r.name}
	marks, err := os.ReadDir(paths.At(r.root, paths.Restart))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, mark := range marks {
		if strings.HasPrefix(mark.Name(), r.name+".") {
			gone = append(gone, paths.Restart+"/"+mark.Name())
		}
	}
	return r.remove(gone...)
}

// remove removes files or empty folders, in this order.
func (r *Removal) remove(all ...string) error {
	for _, path := range all {
		if err := durable.SweepFor(paths.At(r.root, path)); err != nil {
			return err
		}
		removed, err := durable.Remove(paths.At(r.root, path))
		if err != nil {
			return err
		}
		if removed {
			r.log.Changed(path, "removed")
		}
	}
	return nil
}
