package host

import (
	"context"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"unbounded/internal/check"
	"unbounded/internal/packages"
	"unbounded/internal/paths"
	"unbounded/internal/swap"
)

// manager is the package manager of this host; a host whose /usr is read-only has none to use.
func (h *Host) manager() string {
	if _, stat, err := h.statfs("/usr"); err == nil && stat.Flags&unix.ST_RDONLY != 0 {
		return ""
	}
	for _, name := range packages.Names() {
		if h.has(name) {
			return name
		}
	}
	return ""
}

// packages looks for what the prerequisites stage sees to. Where that can install it, nspawn-runtime tells of what is no program;
// where it cannot, all that is missing is one error, with what carries it.
func (h *Host) packages(context.Context) []check.Result {
	missing, err := packages.MissingBy(h.Root, h.has)
	if err != nil {
		return one(check.Fail(check.May, "programs", "%v", err))
	}
	manager := h.manager()
	if manager == "" && len(missing) > 0 {
		return one(check.Fail(check.May, "programs", "this host lacks %s, and has no package manager that could install them", packages.List(missing, "")).
			Fix("%s", packages.Remedy(h.Root, packages.Packages(missing, ""))))
	}
	var results []check.Result
	for _, need := range missing {
		if len(need.Files) == 0 {
			results = append(results, check.Warn(need.Name, "%s is missing; %s will be asked to install %s", need.Name, manager, need.Package(manager)))
		}
	}
	if len(results) > 0 {
		return results
	}
	return one(check.Pass("programs", "all are there"))
}

// runtime looks at systemd itself: it runs the stages, and machined the machine.
func (h *Host) runtime(ctx context.Context) []check.Result {
	if _, err := os.Stat(h.at("/run/systemd/system")); err != nil {
		return one(check.Fail(check.May, "systemd", "this host was not booted with systemd").Fix("boot it with systemd as PID 1"))
	}
	if h.Units == nil {
		return one(check.Fail(check.Waits, "systemd", "systemd cannot be reached over D-Bus").Fix("see systemctl status dbus.service"))
	}
	const machined = paths.MachinedUnit
	unit, err := h.Units.Properties(ctx, machined)
	switch {
	case err != nil:
		return one(check.Fail(check.Waits, "systemd", "%v", err))
	case unit.LoadState == "masked":
		return one(check.Fail(check.May, machined, "%s is masked, so no machine can start", machined).Fix("systemctl unmask %s", machined))
	case unit.LoadState == "loaded" && unit.ActiveState == "failed":
		return one(check.Fail(check.May, machined, "%s has failed (%s)", machined, unit.Result).Fix("see journalctl -u %s", machined))
	case unit.LoadState == "loaded":
		return one(check.Pass(machined, "is there"))
	case h.manager() != "":
		return one(check.Warn(machined, "is not installed yet"))
	}
	return one(check.Fail(check.May, machined, "%s is missing, and this host has no package manager to install it with", machined).
		Fix("%s", packages.Remedy(h.Root, []string{"systemd-container"})))
}

// active tells of units of the host that the conflicts stage will keep from running.
func (h *Host) active(units ...string) func(context.Context) []check.Result {
	return func(ctx context.Context) []check.Result {
		if h.Units == nil {
			return nil // said by nspawn-runtime
		}
		var results []check.Result
		for _, name := range units {
			unit, err := h.Units.Properties(ctx, name)
			switch {
			case err != nil:
				results = append(results, check.Warn(name, "%v", err))
			case unit.Runs():
				results = append(results, check.Warn(name, "%s is %s; it will be stopped and kept from running while this host is a node", name, unit.ActiveState))
			}
		}
		if len(results) > 0 {
			return results
		}
		return one(check.Pass(units[0], "is not active"))
	}
}

func (h *Host) swap(context.Context) []check.Result {
	const path = "/proc/swaps"
	areas, err := swap.List(h.Root)
	switch {
	case err != nil:
		return one(check.Warn(path, "cannot be read: %v", err))
	case len(areas) == 0:
		return one(check.Pass(path, "no swap is active"))
	}
	names := make([]string, len(areas))
	for i, area := range areas {
		names[i] = area.Path
	}
	return one(check.Warn(path, "swap is active on %s; it will be switched off while this host is a node", strings.Join(names, ", ")))
}

// controllers are those that kubelet cannot do without when it makes cgroups for the classes of pods.
var controllers = [...]string{"cpu", "memory", "pids"}

func (h *Host) cgroups(context.Context) []check.Result {
	const path = "/sys/fs/cgroup"
	ask := h.Statfs
	if ask == nil {
		ask = unix.Statfs
	}
	var stat unix.Statfs_t
	if err := ask(h.at(path), &stat); err != nil {
		return one(check.Fail(check.May, path, "no cgroups: %v", err).Fix("boot with cgroup version 2"))
	}
	if stat.Type != unix.CGROUP2_SUPER_MAGIC {
		return one(check.Fail(check.May, path, "%s is not cgroup version 2 (unified)", path).
			Fix("boot with systemd.unified_cgroup_hierarchy=1 on the kernel's command line"))
	}
	data, err := os.ReadFile(h.at(path + "/cgroup.controllers"))
	if err != nil {
		return one(check.Fail(check.May, path, "%v", err))
	}
	have := strings.Fields(string(data))
	var missing []string
	for _, name := range controllers {
		if !slices.Contains(have, name) {
			missing = append(missing, name)
		}
	}
	switch {
	case len(missing) == 0:
		return one(check.Pass(path, "version 2 with all controllers that are needed"))
	case h.setting("cgroupsPerQOS") == false:
		return one(check.Warn(path, "controllers are missing: %s; kubelet is configured to do without (cgroupsPerQOS)", strings.Join(missing, ", ")))
	}
	return one(check.Fail(check.May, path, "controllers are missing: %s", strings.Join(missing, ", ")).
		Fix("boot a kernel that has them, without cgroup_disable= and without version 1 controllers"))
}
