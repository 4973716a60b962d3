// Command network keeps the links, routes, rules and packet-filter tables of a node apart from the host's own.
//
// The machine shares the host's network, so the node's overlay network, kube-proxy and CNI plugins
// work on the host. They use public names, and the host may have had things of these names before.
//
// The verb converge runs as unbounded-network.service, before the first machine does. It notes which
// of the names are taken in /var/lib/unbounded/agent/before/network.json, once, and changes nothing.
//
// The verb remove runs as unbounded-reset-network.service. While a slot runs it is refused. It removes what
// has a public name, the right kind, and was not there before: the WireGuard links of ports 51820 to
// 51899, geneve0, vxlan0, ipip0, unbounded0, localdns and the bridge cbr0 with the veths of pods; the
// routes of tables 252 and 51820 to 51899 and the rules that lead there; tables and chains of kube-proxy,
// CNI and the overlay, with the rules that jump there; keys in /etc/wireguard. All else survives.
//
// A host without that note, of the public agent say, is cleaned by name and kind alone, if it shows that a node was on
// it, and keys are left; the program is longer than others for the sake of such hosts. The note outlives this
// stage, marked as done: what was given back since is not the node's.
package main

import "unbounded/internal/stage"

func main() { stage.Main("unbounded-network", converge, remove) }
