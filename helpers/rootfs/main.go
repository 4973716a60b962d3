// Command rootfs makes the root file system of a machine: its image, unpacked, with the verified binaries of a node.
//
// It runs as unbounded-rootfs@<slot>.service. The tree is built beside, as /var/lib/machines/.<slot>.partial,
// and renamed to /var/lib/machines/<slot> when all of it is on disk; so a tree that has its name is complete. Blobs and
// downloads are kept in /var/lib/unbounded/oci, whence an attempt that was cut off goes on. A tree that is there
// is checked against its inventory, and a program that is missing or changed in it is put back by rename,
// also while the machine runs. When a program of a running service has become another one, the
// service is marked in /run/unbounded/restart for the machine stage.
//
// As unbounded-reset-trees.service (remove) it unmounts what is below the trees of both slots and removes them,
// with nspawn's locks and links of them, and these folders. Longer than others by the plan for a tree that is there.
package main

import (
	"context"

	"unbounded/internal/stage"
	"unbounded/internal/systemd"
	"unbounded/internal/unpack"
)

func main() {
	unpack.Child() // returns, unless this process was started to unpack
	stage.Main("unbounded-rootfs", with(converge), with(remove))
}

// with connects to PID 1, which is asked what runs.
func with(do func(context.Context, *stage.Env, *systemd.Manager) error) stage.Func {
	return func(ctx context.Context, env *stage.Env) error {
		manager, err := systemd.Connect(ctx)
		if err != nil {
			return err
		}
		defer manager.Close()
		return do(ctx, env, manager)
	}
}
