package config

import (
	"os"
	"path/filepath"
	"strings"

	"unbounded/internal/osrelease"
	"unbounded/internal/paths"
)

// Host is what the configuration's defaults depend on.
type Host struct {
	Hostname     string
	OSID         string // ID of os-release
	OSVersion    string // VERSION_ID of os-release
	OSLike       string // ID_LIKE of os-release
	NVIDIA       bool   // NVIDIA device nodes exist
	RegistryAuth bool   // paths.RegistryAuth exists
}

// ReadHost looks at the host below root ("/" for the real one). What cannot be read
// stays empty: the checks that need it say what to set instead.
func ReadHost(root string) Host {
	system := osrelease.Read(root)
	host := Host{
		Hostname: firstLine(root, "/proc/sys/kernel/hostname", "/etc/hostname"),
		OSID:     system["ID"], OSVersion: system["VERSION_ID"], OSLike: system["ID_LIKE"],
	}
	nodes, _ := filepath.Glob(paths.At(root, "/dev/nvidia[0-9]*")) // the pattern is right
	host.NVIDIA = len(nodes) > 0
	_, err := os.Stat(paths.At(root, paths.RegistryAuth))
	host.RegistryAuth = err == nil
	return host
}

// firstLine is that of the first of the files that has something in it.
func firstLine(root string, names ...string) string {
	for _, name := range names {
		if data, err := os.ReadFile(paths.At(root, name)); err == nil && len(data) > 0 {
			line, _, _ := strings.Cut(string(data), "\n")
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// defaultImage is the public image that fits the host.
func (h Host) defaultImage() string {
	name, tag := "ubuntu2404", "v20260619"
	switch {
	case h.OSID == "ubuntu" && h.OSVersion == "26.04":
		name = "ubuntu2604"
	case h.rpm():
		name = "azlinux3"
	}
	if h.NVIDIA {
		if name == "azlinux3" {
			tag = "v20260626"
		}
		name += "-nvidia"
	}
	return "ghcr.io/azure/agent-" + name + ":" + tag
}

// rpm tells whether the host is of a family that uses RPM packages.
func (h Host) rpm() bool {
	for _, id := range append(strings.Fields(h.OSLike), h.OSID) {
		switch id {
		case "azurelinux", "mariner", "fedora", "rhel", "centos", "almalinux", "rocky", "ol", "amzn", "suse", "opensuse", "sles":
			return true
		}
	}
	return false
}
