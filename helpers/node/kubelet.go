package main

import (
	"context"

	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

// stopKubelet stops kubelet in slot's machine, if the machine runs. That it cannot be told is an error.
func stopKubelet(ctx context.Context, slot string) error {
	host, err := systemd.Connect(ctx)
	if err != nil {
		return err
	}
	defer host.Close()
	if err := waitForBoot(ctx, host, slot); err != nil {
		return err
	}
	runs, err := host.SlotRuns(ctx, slot)
	if err != nil || !runs {
		return err
	}
	inner, err := host.Inner(ctx, slot)
	if err != nil {
		return err
	}
	defer inner.Close()
	_, err = inner.Stop(ctx, paths.KubeletUnit)
	return err
}

// waitForBoot waits for a machine that is just starting: its own manager cannot be spoken to before.
func waitForBoot(ctx context.Context, host *systemd.Manager, slot string) error {
	unit := paths.MachineUnit(slot)
	p, err := host.Properties(ctx, unit)
	if err != nil || p.ActiveState != "activating" || p.Job == 0 {
		return err
	}
	// This start joins the one that runs. That it failed is the machine stage's to tell.
	if _, err := host.Start(ctx, unit); err != nil && ctx.Err() != nil {
		return err
	}
	return nil
}
