// Command join waits until the kubelet of a machine has joined its cluster, and then commits what it was built from.
//
// It runs as unbounded-join@SLOT.service. When kubelet has credentials of its own and its Node
// exists, /var/lib/machines/SLOT/etc/unbounded/built.json becomes, byte for byte,
// /etc/unbounded/agent/SLOT-applied-config.json with its checksum; then
// /var/lib/unbounded/agent/active.SLOT says where the node runs. It writes nothing else.
//
// While it waits, unit status says for what. It ends early when that cannot come any
// more: a certificate that is not trusted, a token that is rejected, a request that is denied, a
// kubelet that ends again and again. Every one is an ordinary failure (exit status
// 1), since a refreshed token or a changed cluster cures it; the boot unit tries again.
package main

import (
	"os"
	"time"

	"unbounded/internal/stage"
)

func main() {
	limit, err := time.ParseDuration(os.Getenv("UNBOUNDED_JOIN_TIMEOUT"))
	if err != nil {
		limit = 5 * time.Minute
	}
	stage.Main("unbounded-join", join(limit), remove)
}
