// Package nspawn makes the host's files for a machine: its settings (.nspawn), the
// drop-in for its unit, and the mount unit of its BPF file system.
//
// Settings, DropIn and Mount are pure; Discover looks at the host's devices.
package nspawn

import (
	"fmt"
	"slices"
	"strings"

	"unbounded/internal/config"
	"unbounded/internal/guest"
	"unbounded/internal/paths"
)

// Settings is the .nspawn file of slot: real root and capabilities, the host's network, no
// system call filter for keyrings, BPF and perf, and what of the host the machine sees.
func Settings(slot string, c *config.Config, d Devices) string {
	var text strings.Builder
	text.WriteString(guest.Mark)
	text.WriteString(`[Exec]
Boot=yes
Capability=all
LinkJournal=no
NotifyReady=yes
PrivateUsers=no
# The machine resolves as the host does, whatever link the image has.
ResolvConf=replace-host
SystemCallFilter=@keyring bpf perf_event_open

[Network]
VirtualEthernet=no

[Files]
`)
	fmt.Fprintf(&text, "Bind=%s/%s:/sys/fs/bpf\n", paths.BPF, slot)
	for _, path := range d.ReadOnly {
		fmt.Fprintf(&text, "BindReadOnly=%s\n", path)
	}
	for _, node := range bound(c, d) {
		if slices.Contains(d.Missing, node) {
			text.WriteString(awayMark)
		}
		fmt.Fprintf(&text, "Bind=%s\n", node)
	}
	for _, mount := range c.Mounts {
		key := "Bind"
		if mount.ReadOnly {
			key = "BindReadOnly"
		}
		fmt.Fprintf(&text, "%s=%s:%s\n", key, mount.Source, mount.Target)
	}
	return text.String()
}

// bound are the device nodes that the machine gets, those of the configuration last.
func bound(c *config.Config, d Devices) []string {
	nodes := slices.Clone(d.Nodes)
	for _, device := range c.Devices {
		if strings.HasPrefix(device, "/") && !slices.Contains(nodes, device) {
			nodes = append(nodes, device)
		}
	}
	return nodes
}

// DropIn is the drop-in for the unit of slot. prefix is where our programs are.
func DropIn(slot, prefix string, c *config.Config, d Devices) string {
	allowed := []string{"char-ipvtap rwm", "char-macvtap rwm", "block-* rwm"}
	for _, node := range bound(c, d) {
		// Whoever writes to the host's log writes to everybody's.
		access := "rwm"
		if node == kmsg {
			access = "r"
		}
		allowed = append(allowed, node+" "+access)
	}
	for _, device := range c.Devices {
		if !strings.HasPrefix(device, "/") {
			allowed = append(allowed, device+" rwm")
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, dropIn, paths.Active("%i"), paths.RunSlot+"/%i", paths.BPF+"/"+slot, strings.Join(paths.Firewalls(), " "), prefix)
	for _, device := range allowed {
		text.WriteString("DeviceAllow=" + strings.ReplaceAll(device, "%", "%%") + "\n")
	}
	return text.String()
}

// dropIn has places for the two conditions, the BPF mount, the host's firewall units and our prefix.
const dropIn = guest.Mark + `[Unit]
# One slot may run: the one that the node is in, or that a start of ours is building in this boot.
ConditionPathExists=|%s
ConditionPathExists=|%s
RequiresMountsFor=/var/lib/unbounded /var/lib/machines %s
# A firewall that loads later flushes what the node has set up.
After=%s
StartLimitIntervalSec=0

[Service]
# A registration and a mount that a killed machine left behind keep the next one from starting.
# (machinectl terminate would not do: it asks to stop this very unit, which is refused.)
ExecStartPre=-/usr/bin/busctl --quiet --timeout=2 call org.freedesktop.machine1 /org/freedesktop/machine1 org.freedesktop.machine1.Manager UnregisterMachine s %%i
ExecStartPre=-/usr/bin/umount --quiet --lazy /run/systemd/nspawn/unix-export/%%i
# A device that is gone keeps it from starting too.
ExecStartPre=-%s/current/unbounded-node refresh %%i
Environment=SYSTEMD_NSPAWN_API_VFS_WRITABLE=network
Environment=SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
Restart=on-failure
RestartSec=10s
# The whole boot of the machine is in the start job.
TimeoutStartSec=infinity
# All pods together.
TasksMax=infinity
`

// Mount is the mount unit of the BPF file system that slot sees as /sys/fs/bpf. The drop-in pulls it in.
func Mount(slot string) string {
	return fmt.Sprintf(mount, slot, paths.BPF, slot)
}

const mount = guest.Mark + `[Unit]
Description=BPF file system of machine %s

[Mount]
What=bpf
Where=%s/%s
Type=bpf
Options=mode=0700
`
