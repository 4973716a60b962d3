package systemd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"unbounded/internal/paths"
)

// cgroups are where a host's cgroup v2 tree is: alone, or beside version 1.
var cgroups = [...]string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

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
	return populated(cgroups[:], p.ControlGroup, unit)
}

// populated looks at the cgroup that systemd names and, since it forgets the name of a unit that has
// failed or was never loaded, at the one where the template puts it.
func populated(roots []string, group, unit string) (bool, error) {
	for _, root := range roots {
		for _, group := range []string{group, "machine.slice/" + unit} {
			if group == "" {
				continue
			}
			full, err := eventsPopulated(filepath.Join(root, group, "cgroup.events"))
			if full || err != nil {
				return full, err
			}
		}
	}
	return false, nil
}

// eventsPopulated reads a cgroup.events file. A cgroup that is not there, or goes away meanwhile, is empty.
func eventsPopulated(path string) (bool, error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENOTDIR):
		return false, nil
	case err != nil:
		return false, err
	}
	for line := range bytes.Lines(data) {
		if string(bytes.TrimSpace(line)) == "populated 1" {
			return true, nil
		}
	}
	return false, nil
}
