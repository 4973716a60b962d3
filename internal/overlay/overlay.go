// Package overlay knows by their public names what a node makes in the network of its host, which the machine shares:
// links, routes and policy rules of the overlay network, and parts of the packet filter. It tells what
// of it was there before, and removes the rest.
package overlay

import (
	"fmt"
	"strconv"
	"strings"

	"unbounded/internal/link"
)

// Numbers of the overlay network. A WireGuard link is named after its port, and a gateway's table has the
// number of that port; all other routes are in mainTable, which one rule of that priority leads to.
const (
	firstPort    = 51820
	lastPort     = 51899
	mainTable    = 252
	mainPriority = 32765
)

// bridge is the link that the veths of pods are ports of.
const bridge = "cbr0"

// wireguard is the key of Kinds for the links that are named after a port.
const wireguard = "wg"

// Kinds are the links of a node: the kind that each name has. A link of that name and another kind is somebody else's.
type Kinds map[string]string

// Public are the kinds as they are.
func Public() Kinds {
	return Kinds{
		wireguard: "wireguard", "geneve0": "geneve", "vxlan0": "vxlan", "ipip0": "ipip", "unbounded0": "dummy",
		bridge: "bridge", "localdns": "dummy",
	}
}

// of is the kind that a link of that name has if it is a node's.
func (k Kinds) of(name string) (kind string, ok bool) {
	if digits, found := strings.CutPrefix(name, wireguard); found {
		port, err := strconv.ParseUint(digits, 10, 32)
		if err != nil || !gatewayTable(uint32(port)) || strconv.FormatUint(port, 10) != digits {
			return "", false
		}
		name = wireguard
	}
	kind, ok = k[name]
	return kind, ok
}

func gatewayTable(number uint32) bool { return number >= firstPort && number <= lastPort }

func publicTable(number uint32) bool { return number == mainTable || gatewayTable(number) }

func publicRule(r link.Rule) bool {
	return gatewayTable(r.Table) || r.Table == mainTable && r.Priority == mainPriority
}

// Inventory is what a network namespace has.
type Inventory struct {
	Links  []link.Link
	Routes []link.Route
	Rules  []link.Rule
}

// Names are the names of all that a node could have made, whoever did: what is there before a node is, is not the node's.
func (i Inventory) Names(kinds Kinds) []string {
	var names []string
	for _, l := range i.Links {
		if _, ok := kinds.of(l.Name); ok {
			names = append(names, l.String())
		}
	}
	for _, r := range i.Routes {
		if publicTable(r.Table) {
			names = append(names, r.String())
		}
	}
	for _, r := range i.Rules {
		if publicRule(r) {
			names = append(names, r.String())
		}
	}
	return names
}

// Plan is what is to be removed, in this order, and why other things of that name are left.
type Plan struct {
	Routes []link.Route
	Rules  []link.Rule
	Links  []link.Link
	Left   []string
}

// Empty tells whether there is nothing to remove.
func (p Plan) Empty() bool { return len(p.Routes)+len(p.Rules)+len(p.Links) == 0 }

// Plan tells what of i a node has made. keep says of a name whether it was there before the node; known, whether
// that can be told at all. A link is a node's if its kind is right too. Routes come before the rules that lead there:
// without knowing what was there, that rule is what makes table 252 a node's.
func (i Inventory) Plan(kinds Kinds, known bool, keep func(name string) bool) Plan {
	var p Plan
	foreign := map[table]bool{} // tables that a WireGuard link of somebody else has routes in
	for _, r := range i.Routes {
		switch {
		case !publicTable(r.Table):
		case keep(r.String()):
			p.leave(r, "was there before the node")
		case i.foreignTunnel(r.Device, kinds):
			// wg-quick takes tables from 51820 on, as a node does.
			foreign[table{r.Family, r.Table}] = true
			p.leave(r, "goes through a WireGuard link that is not the node's")
		case r.Table == mainTable && !known && !i.leadsTo(r):
			p.leave(r, "is not known to be the node's: no rule of priority %d leads to table %d", mainPriority, mainTable)
		default:
			p.Routes = append(p.Routes, r)
		}
	}
	i.planRules(&p, foreign, keep)
	i.planLinks(&p, kinds, keep)
	return p
}

// first is one of what is to be removed.
func (p Plan) first() string {
	switch {
	case len(p.Routes) > 0:
		return p.Routes[0].String()
	case len(p.Rules) > 0:
		return p.Rules[0].String()
	}
	return p.Links[0].String()
}

type table struct {
	family uint8
	number uint32
}

func (p *Plan) leave(object fmt.Stringer, why string, args ...any) {
	p.Left = append(p.Left, fmt.Sprintf("%s %s", object, fmt.Sprintf(why, args...)))
}

// planRules plans rules. The kernel removes the first that has what it is told, whatever else that one has: behind a
// rule of the host with that priority and table, the node's cannot be reached.
func (i Inventory) planRules(p *Plan, foreign map[table]bool, keep func(string) bool) {
	type place struct {
		table
		priority uint32
	}
	kept := map[place]bool{}
	for _, r := range i.Rules {
		at := place{table{r.Family, r.Table}, r.Priority}
		switch {
		case !publicRule(r):
			continue
		case keep(r.String()):
			p.leave(r, "was there before the node")
		case foreign[at.table]:
			p.leave(r, "leads to a table of a WireGuard link that is not the node's")
		case kept[at]:
			p.leave(r, "comes after one of the host with its priority and table, which would be hit in its place")
		default:
			p.Rules = append(p.Rules, r)
			continue
		}
		kept[at] = true
	}
}

// foreignTunnel tells of a WireGuard link that is not a node's by its name.
func (i Inventory) foreignTunnel(index uint32, kinds Kinds) bool {
	for _, l := range i.Links {
		if l.Index == index && index != 0 {
			_, named := kinds.of(l.Name)
			return !named && l.Kind == kinds[wireguard]
		}
	}
	return false
}

// leadsTo tells whether the node's rule leads to the table of r.
func (i Inventory) leadsTo(r link.Route) bool {
	for _, rule := range i.Rules {
		if rule.Family == r.Family && rule.Table == r.Table && publicRule(rule) {
			return true
		}
	}
	return false
}

// planLinks plans links, the ports of the bridge before it: once it is gone nobody can tell whose they were.
func (i Inventory) planLinks(p *Plan, kinds Kinds, keep func(string) bool) {
	var links []link.Link
	for _, l := range i.Links {
		kind, ok := kinds.of(l.Name)
		switch {
		case !ok:
		case keep(l.String()):
			p.leave(l, "was there before the node")
		case l.Kind != kind:
			p.leave(l, "is not the node's: its kind is %q, not %s", l.Kind, kind)
		default:
			links = append(links, l)
			if l.Name == bridge {
				p.Links = append(p.Links, i.pods(l.Index)...)
			}
		}
	}
	p.Links = append(p.Links, links...)
}

// pods are the veths of pods at the bridge: those that have a name as CNI's bridge plugin makes them.
func (i Inventory) pods(master uint32) []link.Link {
	var ports []link.Link
	for _, l := range i.Links {
		digits, found := strings.CutPrefix(l.Name, "veth")
		if l.Master == master && l.Kind == "veth" && found && len(digits) == 8 && strings.Trim(digits, "0123456789abcdef") == "" {
			ports = append(ports, l)
		}
	}
	return ports
}
