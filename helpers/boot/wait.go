package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"unbounded/internal/exit"
	"unbounded/internal/journal"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

// waiter waits for a unit. *systemd.Manager does.
type waiter interface {
	Until(ctx context.Context, unit string, done func(systemd.Properties) bool) (systemd.Properties, error)
}

// wait is the verb. Only the marker is success: also for one who sends us a SIGTERM.
func wait(ctx context.Context, root string, log *journal.Log) error {
	manager, err := systemd.Connect(ctx)
	if err != nil {
		return err
	}
	defer manager.Close()
	return await(ctx, root, log, manager)
}

func await(ctx context.Context, root string, log *journal.Log, units waiter) error {
	log.Status("waiting for %s", paths.BootUnit)
	boot, err := units.Until(ctx, paths.BootUnit, func(p systemd.Properties) bool { return !p.Runs() })
	if err != nil {
		return fmt.Errorf("wait for %s: %w", paths.BootUnit, err)
	}
	_, err = os.Lstat(paths.At(root, paths.Complete))
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case boot.BegunAt.IsZero(): // after a reset the link that enables us is still there
		log.Notice("%s was not started in this boot: this host is not to become a node, and nothing is waited for", paths.BootUnit)
		return nil
	case boot.ExecMainCode == 1 && exit.Status(boot.ExecMainStatus) == exit.Refused:
		return exit.As(exit.Refused, fmt.Errorf("%s was refused, and this boot is not complete: see `systemctl status %s`", paths.BootUnit, paths.BootUnit))
	}
	return fmt.Errorf("%s has ended, this host is no node, and this boot is not complete: see `systemctl status %s`", paths.BootUnit, paths.BootUnit)
}
