package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"unbounded/internal/exit"
	"unbounded/internal/machined"
	"unbounded/internal/packages"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
)

// plan says which packages are to be installed with manager.
func plan(missing []packages.Need, manager string) []string {
	var names []string
	for _, n := range missing {
		if name := n.Package(manager); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

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
		return exit.As(exit.Refused, fmt.Errorf("the host lacks %s, and %s: add them to its image, or as a system extension", list(missing, manager), why))
	}
	names := plan(missing, manager)
	if err := install(ctx, names...); err != nil {
		return err
	}
	env.Log.Changed(strings.Join(names, " "), "installed with "+manager)
	if missing, err = packages.Missing(env.Root); err != nil || len(missing) == 0 {
		return err
	}
	return exit.As(exit.Refused, fmt.Errorf("%s has installed %s, but the host still lacks %s: install them by hand",
		manager, strings.Join(names, " "), list(missing, manager)))
}

func list(missing []packages.Need, manager string) string {
	words := make([]string, len(missing))
	for i, n := range missing {
		words[i] = fmt.Sprintf("%s (package %s)", n.Name, n.Package(manager))
	}
	return strings.Join(words, ", ")
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
