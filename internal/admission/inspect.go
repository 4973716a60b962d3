package admission

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"unbounded/internal/legacy"
	"unbounded/internal/paths"
)

// Slots answers what runs. PID 1 is the authority, machined only confirms.
type Slots interface {
	// SlotRuns asks PID 1. An error, which names the slot, means that it cannot be told.
	SlotRuns(ctx context.Context, slot string) (bool, error)
	// Registered asks machined. A host without systemd-container has none registered; any other error
	// than that means that it cannot be told.
	Registered(ctx context.Context, slot string) (bool, error)
}

// Inspect lists what there is of an existing deployment on the host below root. Nothing
// found and no error is the proof that the host is clean.
func Inspect(ctx context.Context, root string, slots Slots) ([]string, error) {
	var found []string
	for _, slot := range paths.Slots() {
		names, err := inspectSlot(ctx, root, slot, slots)
		if err != nil {
			return nil, err
		}
		found = append(found, names...)
	}
	names, err := there(root, paths.SystemdDir+"/"+paths.DaemonUnit, paths.SystemdDir+"/"+paths.RecoveryUnit)
	if err != nil {
		return nil, err
	}
	older, err := legacy.Deployment(root)
	return slices.Concat(found, names, older), err
}

func inspectSlot(ctx context.Context, root, slot string, slots Slots) ([]string, error) {
	var found []string
	runs, err := slots.SlotRuns(ctx, slot)
	if err != nil {
		return nil, err
	}
	registered, err := slots.Registered(ctx, slot)
	if err != nil {
		return nil, err
	}
	if runs || registered {
		found = append(found, "running machine "+slot)
	}
	names, err := there(root, paths.Tree(slot), paths.Nspawn(slot), paths.DropIn(slot), paths.Applied(slot), paths.BPF+"/"+slot)
	return append(found, names...), err
}

// there are those of the host's paths that exist, links that lead nowhere included.
func there(root string, all ...string) ([]string, error) {
	var found []string
	for _, path := range all {
		switch _, err := os.Lstat(paths.At(root, path)); {
		case err == nil:
			found = append(found, path)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return found, nil
}

// machineID is the host's machine-id and whether it is persistent. While the file is a
// mount (a first boot that was not committed) an interrupted boot would get another one.
func machineID(root string) (id string, persistent bool, err error) {
	path := paths.At(root, paths.MachineID)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	id = strings.TrimSpace(string(data))
	if id == "" || id == "uninitialized" {
		return "", false, nil
	}
	mounts, err := os.ReadFile(paths.At(root, "/proc/self/mountinfo"))
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == paths.MachineID {
			return id, false, nil
		}
	}
	return id, true, nil
}
