// Package host holds the checks of this host: what must be there, and what is in the way.
//
// They look and change nothing. Whatever they look at is below Host.Root, so that a
// test can give them a made-up host; what only a kernel can tell is a field.
//
// The package is longer than others because it has a sentence and a remedy for everything that may be in the way.
package host

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"unbounded/internal/check"
	"unbounded/internal/config"
	"unbounded/internal/paths"
	"unbounded/internal/run"
	"unbounded/internal/systemd"
)

// Units answers what systemd knows of a unit. *systemd.Manager does.
type Units interface {
	Properties(ctx context.Context, unit string) (systemd.Properties, error)
}

// Host is where the checks look.
type Host struct {
	Root   string         // "/", or a test's
	Prefix string         // where our programs are installed
	Slot   string         // the machine that is to be built
	Config *config.Config // nil when there is none that can be used: then the defaults count
	UID    int
	Units  Units // nil: systemd cannot be reached
	// Statfs is unix.Statfs when nil.
	Statfs func(path string, stat *unix.Statfs_t) error
	// Label is the SELinux label of a file; its extended attribute when nil.
	Label func(path string) (string, error)
	// Program finds an executable by name; in the folders of the host when nil.
	Program func(name string) bool
}

// Checks are all checks of the host.
func (h *Host) Checks() []check.Check {
	return []check.Check{
		{Name: "is-privileged-user", Look: h.privileged},
		{Name: "machine-id", Look: h.machineID},
		{Name: "secret-files", Look: h.secret},
		{Name: "host-os-configuration", Look: h.writable},
		{Name: "executable-paths", Look: h.executable},
		{Name: "selinux-labels", Look: h.labels},
		{Name: "nspawn-machine-provisioning", Look: h.provisioning},
		{Name: "nspawn-runtime", Look: h.runtime},
		{Name: "host-packages", Look: h.packages},
		{Name: "docker-active", Look: h.active("docker.service", "docker.socket")},
		{Name: "containerd-active", Look: h.active(paths.ContainerdUnit)},
		{Name: "kubelet-active", Look: h.active(paths.KubeletUnit)},
		{Name: "swap-active", Look: h.swap},
		{Name: "cgroups", Look: h.cgroups},
		{Name: "kubelet-bind-address", Look: h.port("kubelet", h.kubeletPort())},
		{Name: "containerd-metrics-bind-address", Look: h.port("containerd", containerdMetrics)},
	}
}

func (h *Host) at(path string) string { return paths.At(h.Root, path) }

// setting is a key of the KubeletConfiguration that the operator gave, nil without one.
func (h *Host) setting(key string) any {
	if h.Config == nil {
		return nil
	}
	return h.Config.Kubelet[key]
}

func (h *Host) privileged(context.Context) []check.Result {
	if h.UID != 0 {
		return one(check.Fail(check.May, "uid", "runs as uid %d", h.UID).Fix("run it as root"))
	}
	return one(check.Pass("uid", "runs as root"))
}

// machineID tells of an id that the next boot will not have. That two hosts share one
// cannot be seen from one of them; the install record notices when an installed disk is copied.
func (h *Host) machineID(context.Context) []check.Result {
	const path = paths.MachineID
	data, err := os.ReadFile(h.at(path))
	id := strings.TrimSpace(string(data))
	switch {
	case err != nil:
		return one(check.Warn(path, "cannot be read: %v", err).Fix("run systemd-machine-id-setup"))
	case id == "" || id == "uninitialized":
		return one(check.Warn(path, "is empty: journal and DHCP leases of this host change with every boot").Fix("run systemd-machine-id-setup"))
	case strings.Trim(id, "0123456789abcdef") != "" || len(id) != 32:
		return one(check.Warn(path, "is not 32 hexadecimal digits").Fix("remove it and run systemd-machine-id-setup"))
	}
	if mount, ok := h.mountOf(path); ok && mount == path {
		return one(check.Warn(path, "is of this boot only: it is not written to the disk yet"))
	}
	return one(check.Pass(path, "is there"))
}

// secret looks at who else can read the files that hold credentials.
func (h *Host) secret(context.Context) []check.Result {
	files := []string{paths.Config}
	if h.Config != nil && h.Config.RegistryAuthFile != "" {
		files = append(files, h.Config.RegistryAuthFile)
	}
	var results []check.Result
	for _, path := range files {
		info, err := os.Stat(h.at(path))
		if err != nil {
			continue // said by whoever needs it
		}
		if mode := info.Mode().Perm(); mode&0o077 != 0 {
			results = append(results, check.Warn(path, "%s has mode %04o: others than root may read its credentials", path, mode).
				Fix("chmod 600 %s, and renew what others may have read", path))
		}
	}
	if len(results) > 0 {
		return results
	}
	return one(check.Pass(strings.Join(files, ", "), "only root can read them"))
}

func one(result check.Result) []check.Result { return []check.Result{result} }

func (h *Host) has(name string) bool {
	if h.Program != nil {
		return h.Program(name)
	}
	_, found := run.Find(h.Root, name)
	return found
}

func size(bytes uint64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }
