package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"unbounded/internal/exit"
	"unbounded/internal/machined"
	"unbounded/internal/packages"
	"unbounded/internal/paths"
	"unbounded/internal/run"
	"unbounded/internal/stage"
)

// need is a program or a file that the host must have.
type need struct {
	name     string
	files    []string // any of them, for what is no program
	provider string   // name of the package, with every manager
	debian   string   // name of the package where Debian's differs
}

func needs() []need {
	return []need{
		// systemd-nspawn@.service runs it.
		{name: "systemd-nspawn", provider: "systemd-container"},
		{name: "systemd-nspawn@.service", provider: "systemd-container", files: []string{
			"/usr/lib/systemd/system/systemd-nspawn@.service", "/lib/systemd/system/systemd-nspawn@.service",
			"/etc/systemd/system/systemd-nspawn@.service",
		}},
		{name: "org.freedesktop.machine1.service", provider: "systemd-container", files: []string{
			"/usr/share/dbus-1/system-services/org.freedesktop.machine1.service",
			"/usr/local/share/dbus-1/system-services/org.freedesktop.machine1.service",
		}},
		// unbounded-kernel.service loads modules with it.
		{name: "modprobe", provider: "kmod"},
		// The drop-in of the machine's unit mounts its BPF file system with them.
		{name: "mountpoint", provider: "util-linux"},
		{name: "mount", provider: "util-linux", debian: "mount"},
		{name: "umount", provider: "util-linux", debian: "mount"},
	}
}

// packageFor is the package that has n, in the words of manager.
func (n need) packageFor(manager string) string {
	if manager == "apt-get" && n.debian != "" {
		return n.debian
	}
	return n.provider
}

// plan says which packages are to be installed with manager.
func plan(missing []need, manager string) []string {
	var names []string
	for _, n := range missing {
		if name := n.packageFor(manager); !slices.Contains(names, name) {
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
	missing, err := look(env.Root)
	if err != nil || len(missing) == 0 {
		return err
	}
	if install == nil {
		why := "it has no package manager that is known (apt-get, dnf, tdnf)"
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
	if missing, err = look(env.Root); err != nil || len(missing) == 0 {
		return err
	}
	return exit.As(exit.Refused, fmt.Errorf("%s has installed %s, but the host still lacks %s: install them by hand",
		manager, strings.Join(names, " "), list(missing, manager)))
}

func look(root string) ([]need, error) {
	var missing []need
	for _, n := range needs() {
		there, err := n.there(root)
		if err != nil {
			return nil, err
		}
		if !there {
			missing = append(missing, n)
		}
	}
	return missing, nil
}

func (n need) there(root string) (bool, error) {
	if len(n.files) == 0 {
		_, found := run.Find(root, n.name)
		return found, nil
	}
	for _, file := range n.files {
		_, err := os.Stat(paths.At(root, file))
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err == nil, err
		}
	}
	return false, nil
}

func list(missing []need, manager string) string {
	words := make([]string, len(missing))
	for i, n := range missing {
		words[i] = fmt.Sprintf("%s (package %s)", n.name, n.packageFor(manager))
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
