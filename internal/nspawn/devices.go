package nspawn

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"unbounded/internal/paths"
)

const kmsg = "/dev/kmsg"

// Devices is what of the host a machine is given.
type Devices struct {
	Nodes    []string // device nodes, sorted
	ReadOnly []string // folders that are bound read-only
	Missing  []string // nodes that the configuration names, and the host does not have
}

// notDisks are names of block devices that are no disk of the host.
var notDisks = [...]string{"loop", "ram", "zram", "fd", "sr"}

// Discover looks at the devices of the host below root, and for those that the configuration names.
// A source that is not there would keep the machine from starting, so everything is looked for.
func Discover(root string, configured ...string) (Devices, error) {
	var d Devices
	for _, pattern := range []string{
		kmsg, "/dev/kvm", "/dev/net/tun", "/dev/vhost-net", "/dev/infiniband/*",
		"/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/nvidia-caps-imex-channels/*", "/dev/kfd",
	} {
		d.add(root, pattern)
	}
	amd, nvidia := slices.Contains(d.Nodes, "/dev/kfd"), slices.ContainsFunc(d.Nodes, func(node string) bool {
		return strings.HasPrefix(node, "/dev/nvidia")
	})
	if amd || nvidia {
		d.add(root, "/dev/dri/card*")
		d.add(root, "/dev/dri/renderD*")
	}
	if err := d.disks(root); err != nil {
		return Devices{}, err
	}
	slices.Sort(d.Nodes)
	d.Nodes = slices.Compact(d.Nodes)
	for _, node := range configured {
		if strings.HasPrefix(node, "/") && !Exists(root, node) {
			d.Missing = append(d.Missing, node)
		}
	}

	d.folder(root, "/lib/modules")
	if amd {
		for _, path := range []string{"/sys/class/drm", "/sys/class/kfd", "/sys/devices", "/sys/module/amdgpu"} {
			d.folder(root, path)
		}
	}
	return d, nil
}

// add adds the device nodes that match pattern.
func (d *Devices) add(root, pattern string) {
	found, _ := filepath.Glob(paths.At(root, pattern)) // the patterns are right
	for _, path := range found {
		node := inHost(root, path)
		if Exists(root, node) && plain(node) {
			d.Nodes = append(d.Nodes, node)
		}
	}
}

// Exists tells whether the host below root has the device node.
func Exists(root, node string) bool {
	info, err := os.Stat(paths.At(root, node))
	return err == nil && info.Mode()&fs.ModeDevice != 0
}

// disks adds every block device of the host that has a node.
func (d *Devices) disks(root string) error {
	entries, err := os.ReadDir(paths.At(root, "/sys/class/block"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		name := entry.Name()
		if slices.ContainsFunc(notDisks[:], func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		d.add(root, "/dev/"+strings.ReplaceAll(name, "!", "/"))
	}
	return err
}

func (d *Devices) folder(root, path string) {
	if info, err := os.Stat(paths.At(root, path)); err == nil && info.IsDir() {
		d.ReadOnly = append(d.ReadOnly, path)
	}
}

// plain tells whether path can stand in settings of systemd as it is.
func plain(path string) bool {
	return !strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`:\"'`, r) })
}

func inHost(root, path string) string {
	if root == "" || root == "/" {
		return path
	}
	return "/" + strings.TrimPrefix(strings.TrimPrefix(path, filepath.Clean(root)), "/")
}
