package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"unbounded/internal/exit"
	"unbounded/internal/machined"
	"unbounded/internal/packages"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
)

func converge(ctx context.Context, env *stage.Env) error {
	manager, found := packages.Find(env.Root)
	var install func(ctx context.Context, names ...string) error
	name := ""
	if found {
		manager.Status = env.Log.Status
		name, install = manager.Name, manager.Install
	}
	readOnly, err := isReadOnly(paths.At(env.Root, "/usr"))
	if err != nil {
		return err
	}
	if readOnly {
		install = nil
	}
	if err := ensure(ctx, env, name, readOnly, install); err != nil {
		return err
	}
	return knownToBus(ctx, env)
}

// ensure installs what is missing; with install nil it says what that is.
func ensure(ctx context.Context, env *stage.Env, manager string, readOnly bool, install func(context.Context, ...string) error) error {
	missing, err := packages.Missing(env.Root)
	if err != nil || len(missing) == 0 {
		return err
	}
	if install == nil {
		why := "it has no package manager that is known (" + strings.Join(packages.Names(), ", ") + ")"
		if readOnly {
			why = "its /usr is read-only"
		}
		return exit.As(exit.Refused, fmt.Errorf("the host lacks %s, and %s: %s",
			packages.List(missing, manager), why, packages.Remedy(env.Root, packages.Packages(missing, manager))))
	}
	names := packages.Packages(missing, manager)
	if err := install(ctx, names...); err != nil {
		return err
	}
	env.Log.Changed(strings.Join(names, " "), "installed with "+manager)
	if missing, err = packages.Missing(env.Root); err != nil || len(missing) == 0 {
		return err
	}
	return exit.As(exit.Refused, fmt.Errorf("%s has installed %s, but the host still lacks %s: install them by hand",
		manager, strings.Join(names, " "), packages.List(missing, manager)))
}

func isReadOnly(path string) (bool, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return false, fmt.Errorf("statfs %s: %w", path, err)
	}
	return stat.Flags&unix.ST_RDONLY != 0, nil
}

func knownToBus(ctx context.Context, env *stage.Env) error {
	reloaded, err := machined.Known(ctx)
	if errors.Is(err, machined.ErrNone) {
		return fmt.Errorf("%w, says the system bus, although its files are there: try `systemctl reload dbus.service`, or reboot", err)
	}
	if reloaded {
		env.Log.Info("the system bus has read its services again: machined was new to it")
	}
	return err
}
