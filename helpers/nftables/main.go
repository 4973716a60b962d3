// Command nftables gives the first machine a clean packet-filter slate.
//
// It runs as unbounded-nftables.service. The machine shares the host's network, and what a
// distribution's firewall has loaded (an INPUT chain that drops, say) would cut off kubelet and pods.
// While a slot runs nothing is touched: the rules are the node's. When that cannot be told,
// the stage fails and nothing is touched either. With HostFirewall "keep" it does nothing at all.
//
// It removes every nftables table of the host's network namespace, in one
// transaction; what was there goes to /var/lib/unbounded/agent/before/nftables.json first, table by
// table. A table whose owner is a live program can be removed by that program only:
// such tables, and rules of the separate iptables-legacy backend, are named in the journal and left.
//
// Its verb remove, in unbounded-reset-host.service, puts the tables back that are not there. It runs twice in it: a
// firewall service that is started in between may flush the tables of others, which the first run has noted and the second
// puts back. It is longer than other helpers because both ways tell a table of the node from one of the host.
package main

import "unbounded/internal/stage"

func main() { stage.Main("unbounded-nftables", converge, remove) }
