// Command machine makes a machine run, now and after every boot of the host, with its containerd and kubelet.
//
// It runs as unbounded-machine@<slot>.service. A machine that runs is left running, and a service in
// it is restarted only if the node stage changed its files (package restart), containerd first.
// A machine that does not run is started, after what a dead one left behind was cleared
// away: machined's registration and, from systemd 256 on, a mount. It is refused
// while the other slot runs: two nodes cannot share a host.
//
// It writes /run/unbounded/run/<slot>, which lets systemd run this slot in this boot, and takes the
// marks away from /run/unbounded/restart. It has systemd enable systemd-nspawn@<slot>.service and, where the
// host's owner had disabled it, machines.target (before-image: /var/lib/unbounded/agent/before/machine.json),
// and the machine's own systemd enable containerd and kubelet.
//
// The verb remove runs as unbounded-reset-machines.service. It stops the machines of both slots through systemd,
// kills one that does not heed that, and ends only when no process of theirs is left and
// neither a boot nor machined knows of them. It gives machines.target back as it was; the files of
// the machines are left to later stages.
package main

import "unbounded/internal/stage"

func main() { stage.Main("unbounded-machine", converge, remove) }
