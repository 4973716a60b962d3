// Command kernel loads the modules and sets the kernel parameters that kubelet and the network of pods need.
//
// It runs as unbounded-kernel.service. Modules come first, since parameters of a module exist
// only with it: overlay for containerd, br_netfilter so that Services see traffic that
// stays on a bridge. Inside the machine /proc/sys is read-only, so kubelet finds
// there what is set here. IPv6 forwarding is left as it is: it would make the host
// ignore router advertisements, which may be where its default route comes from.
//
// It writes /etc/modules-load.d/99-unbounded.conf, /etc/sysctl.d/99-kubernetes.conf and the live
// values below /proc/sys that differ; what was there before goes to
// /var/lib/unbounded/agent/before/kernel.json first. It runs modprobe, because
// only that program knows which modules a module needs.
//
// Its verb remove, in unbounded-reset-host.service, puts files and live values back as they were. It is longer
// than other helpers because both ways have the same list of values.
package main

import "unbounded/internal/stage"

func main() { stage.Main("unbounded-kernel", converge, remove) }
