// Command conflicts keeps what would fight the node from running on the host.
//
// It runs as unbounded-conflicts.service. It holds back the host's own docker, containerd and kubelet,
// the distribution's packet-filter services (not with HostFirewall "keep") and whatever turns swap
// on, each by a condition drop-in (package dropin), and stops those that run. It turns swap
// off, keeps package upgrades from restarting systemd under the machine, and systemd-networkd
// from removing the node's routes and rules.
//
// It writes /etc/systemd/system/*.d/00-unbounded.conf, lines of /etc/fstab, one key of
// /etc/docker/daemon.json, and the files of package hardening. What was before, running
// units and active swap included, goes to /var/lib/unbounded/agent/before/conflicts.json first.
// Packet-filter rules are left to unbounded-nftables.service, which runs after it.
//
// Its verb remove, in unbounded-reset-host.service, puts all of that back and starts what ran. It is longer
// than other helpers because units, swap and files come back in one order, and so cannot be parted.
package main

import "unbounded/internal/stage"

func main() { stage.Main("unbounded-conflicts", converge, remove) }
