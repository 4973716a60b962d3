package packages

import (
	"errors"
	"io/fs"
	"os"

	"unbounded/internal/paths"
	"unbounded/internal/run"
)

// Need is a program or a file that a host must have to run a machine.
type Need struct {
	Name     string
	Files    []string // any of them, for what is no program
	Provider string   // name of the package, with every manager
	debian   string   // name of the package where Debian's differs
}

// Needs are all needs of a host.
func Needs() []Need {
	return []Need{
		// systemd-nspawn@.service runs it.
		{Name: "systemd-nspawn", Provider: "systemd-container"},
		{Name: "systemd-nspawn@.service", Provider: "systemd-container", Files: []string{
			"/usr/lib/systemd/system/systemd-nspawn@.service", "/lib/systemd/system/systemd-nspawn@.service",
			"/etc/systemd/system/systemd-nspawn@.service",
		}},
		{Name: "org.freedesktop.machine1.service", Provider: "systemd-container", Files: []string{
			"/usr/share/dbus-1/system-services/org.freedesktop.machine1.service",
			"/usr/local/share/dbus-1/system-services/org.freedesktop.machine1.service",
		}},
		// unbounded-kernel.service loads modules with it.
		{Name: "modprobe", Provider: "kmod"},
		// The BPF file system of the machine is mounted with them, and a dead machine's leftovers unmounted.
		{Name: "mountpoint", Provider: "util-linux"},
		{Name: "mount", Provider: "util-linux", debian: "mount"},
		{Name: "umount", Provider: "util-linux", debian: "mount"},
	}
}

// Package is the package that has n, in the words of manager.
func (n Need) Package(manager string) string {
	if manager == apt && n.debian != "" {
		return n.debian
	}
	return n.Provider
}

// Missing are the needs that the host below root has not.
func Missing(root string) ([]Need, error) {
	return MissingBy(root, func(program string) bool {
		_, found := run.Find(root, program)
		return found
	})
}

// MissingBy is Missing on a host of which has tells whether it has a program.
func MissingBy(root string, has func(program string) bool) ([]Need, error) {
	var missing []Need
	for _, n := range Needs() {
		there, err := n.there(root, has)
		if err != nil {
			return nil, err
		}
		if !there {
			missing = append(missing, n)
		}
	}
	return missing, nil
}

func (n Need) there(root string, has func(program string) bool) (bool, error) {
	if len(n.Files) == 0 {
		return has(n.Name), nil
	}
	for _, file := range n.Files {
		_, err := os.Stat(paths.At(root, file))
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err == nil, err
		}
	}
	return false, nil
}
