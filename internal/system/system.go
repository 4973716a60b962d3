// Package system makes the files that turn an image into the system of a machine.
//
// The machine shares the host's network, so nothing in it may load a packet filter, manage
// links or set kernel parameters; and it is a node of its own, so it has its own id.
package system

import (
	"crypto/sha256"
	"encoding/hex"

	"unbounded/internal/guest"
	"unbounded/internal/paths"
	"unbounded/internal/resolv"
)

// Files are what makes an image the system of a machine that shares the host's network.
func Files(hostname, id string, names resolv.Choice) []guest.File {
	files := []guest.File{
		guest.Text("/etc/hostname", hostname+"\n"),
		// With an id the first boot is none, and the image's presets enable nothing.
		{Path: paths.MachineID, Mode: 0o444, Data: []byte(id + "\n")},
		guest.Text("/etc/modules-load.d/kubernetes.conf", "overlay\nbr_netfilter\n"),
		// kubelet does not start without /dev/kmsg: where the host has none to give, nothing is read.
		guest.Text("/etc/tmpfiles.d/kmsg.conf", "L /dev/kmsg - - - - /dev/null\n"),
		// With the host's, the host's log would be copied into the machine's.
		guest.Text("/etc/systemd/journald.conf.d/50-unbounded.conf", "[Journal]\nReadKMsg=no\n"),
		guest.Text(resolv.Host, names.Machine),
	}
	if names.File == resolv.Pods {
		files = append(files, guest.Text(resolv.Pods, names.Pods))
	}
	for _, unit := range Masked() {
		files = append(files, guest.Symlink("/dev/null", "/etc/systemd/system/"+unit))
	}
	return files
}

// Masked are units that would change the network that machine and host share.
func Masked() []string {
	return append(paths.Firewalls(),
		"NetworkManager.service", "networking.service",
		paths.NetworkdUnit, "systemd-networkd.socket", "systemd-networkd-wait-online.service",
		"systemd-resolved.service", "systemd-sysctl.service")
}

// ID is the machine's own id: not the host's, not one that an image was published
// with, and the same for as long as the installation lives. Its form is that of a random UUID.
func ID(installID, slot string) string {
	sum := sha256.Sum256([]byte("unbounded machine " + slot + " of " + installID))
	id := sum[:16]
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return hex.EncodeToString(id)
}
