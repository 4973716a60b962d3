// Command node writes the files of a node into the tree of its machine, and the machine's settings on the host.
//
// It runs as unbounded-node@SLOT.service. In the tree it writes names, kernel module and
// temporary file settings, masks of units that would act on the host's network, resolvers,
// and the files of containerd and kubelet. On the host it writes /etc/systemd/nspawn/SLOT.nspawn,
// the drop-in of systemd-nspawn@SLOT.service and the mount unit of its BPF file system;
// whoever starts the machine reloads the service manager.
//
// The commit point is /etc/unbounded/built.json in the tree; package build has the order of things.
// Services whose files changed are marked for a restart.
//
// Before each start of the machine its unit runs the verb refresh, and goes on if that
// fails: a device that is gone would keep the machine from starting. It rewrites the devices in the
// settings and the resolvers of pods in the tree.
//
// The verb remove runs as unbounded-reset-nspawn.service. It unmounts the BPF file systems of both slots and removes
// what the host has of them, as long as no machine runs. /var/lib/unbounded/agent/before/node-made-nspawn-folder
// says that /etc/systemd/nspawn was made for them; foreign files stay. Three verbs are why this is longer than other helpers.
package main

import "unbounded/internal/stage"

func main() {
	stage.MainVerbs("unbounded-node", map[string]stage.Verb{
		"converge": {Needs: stage.Installing, Do: converge},
		"refresh":  {Needs: stage.LockOnly, Do: refresh},
		"remove":   {Needs: stage.Resetting, Do: remove},
	})
}
