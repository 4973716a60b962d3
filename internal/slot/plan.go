package slot

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"unbounded/internal/exit"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

const machinesTarget = "machines.target"

// host is what the host says of a slot.
type host struct {
	slot        string
	unit        systemd.Properties // of the slot's systemd-nspawn@ unit
	unitFile    string             // how that unit is enabled
	targetFile  string             // how machines.target is enabled, "" if it is not there
	dropIn      bool               // our drop-in is on disk
	other       string             // the other slot
	otherRuns   bool
	otherStable bool // it does not start or stop at the moment
	noMachined  bool // systemd-machined.service is masked, and nspawn has to register with it
}

// step is one thing to do on the host.
type step int

const (
	enableTarget step = iota
	enable
	reload
	stop // ends the wait for an automatic restart, so that what the dead machine left can be cleared
	resetFailed
	clean // processes, registration and mount that a killed nspawn leaves
	start
)

// planHost says what makes the slot's machine run and stay; nothing for one that does.
func planHost(h host) ([]step, error) {
	if err := h.refuse(); err != nil {
		return nil, err
	}
	var steps []step
	if h.targetFile == "disabled" {
		steps = append(steps, enableTarget)
	}
	if h.unitFile != "enabled" {
		steps = append(steps, enable)
	}
	unread := h.dropIn && !slices.Contains(h.unit.DropInPaths, paths.DropInFile(h.slot))
	if len(steps) > 0 || h.unit.NeedDaemonReload || unread {
		steps = append(steps, reload)
	}
	switch {
	case h.unit.ActiveState == "active", h.unit.ActiveState == "reloading", h.unit.ActiveState == "refreshing":
		return steps, nil
	case h.noMachined:
		return nil, exit.As(exit.Refused, fmt.Errorf("%s is masked, and no machine starts without it: run `systemctl unmask %s`", paths.MachinedUnit, paths.MachinedUnit))
	case strings.HasPrefix(h.unit.SubState, "auto-restart"):
		return append(steps, stop, clean, start), nil
	case h.unit.ActiveState == "failed":
		return append(steps, resetFailed, clean, start), nil
	case h.unit.Runs(): // it starts or stops: the start job joins in, or waits
		return append(steps, start), nil
	}
	return append(steps, clean, start), nil
}

// refuse names what keeps the machine from being started here.
func (h host) refuse() error {
	unit := paths.MachineUnit(h.slot)
	switch {
	case h.otherRuns && h.otherStable:
		return exit.As(exit.Refused, fmt.Errorf(
			"machine %s runs, and a host has one node: stop it with `systemctl stop %s`, or reset the host", h.other, paths.MachineUnit(h.other)))
	case h.otherRuns:
		return fmt.Errorf("machine %s has not stopped, and a host has one node: see `systemctl status %s`", h.other, paths.MachineUnit(h.other))
	case h.unit.LoadState == "masked":
		return exit.As(exit.Refused, fmt.Errorf("%s is masked: run `systemctl unmask %s`", unit, unit))
	case h.unit.LoadState == "not-found":
		return errors.New("systemd-nspawn@.service is not there: the package systemd-container provides it")
	case h.unit.LoadState != "loaded":
		return fmt.Errorf("%s cannot be loaded (%s): see `systemctl status %s`", unit, h.unit.LoadState, unit)
	case strings.HasPrefix(h.targetFile, "masked"):
		return exit.As(exit.Refused, fmt.Errorf(
			"%s is masked, so no machine starts at boot: run `systemctl unmask %s`", machinesTarget, machinesTarget))
	}
	return nil
}
