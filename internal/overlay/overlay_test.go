package overlay

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/link"
)

func TestKinds(t *testing.T) {
	for _, test := range []struct {
		name string
		kind string
		ok   bool
	}{
		{"wg51820", "wireguard", true},
		{"wg51899", "wireguard", true},
		{"wg51819", "", false},
		{"wg51900", "", false},
		{"wg0", "", false},
		{"wg", "", false},
		{"wg051820", "", false},
		{"wg+51820", "", false},
		{"wg51820x", "", false},
		{"wg18446744073709603436", "", false}, // 51820 in 32 bits
		{"wg4295019116", "", false},
		{"geneve0", "geneve", true},
		{"geneve1", "", false},
		{"vxlan0", "vxlan", true},
		{"ipip0", "ipip", true},
		{"unbounded0", "dummy", true},
		{"localdns", "dummy", true},
		{"cbr0", "bridge", true},
		{"cni0", "", false},
		{"lo", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if kind, ok := Public().of(test.name); kind != test.kind || ok != test.ok {
				t.Errorf("of(%q) = %q, %v, want %q, %v", test.name, kind, ok, test.kind, test.ok)
			}
		})
	}
}

const (
	ip4 = 2
	ip6 = 10
)

// planned are the names of what a plan removes, in order.
func planned(p Plan) []string {
	var names []string
	for _, r := range p.Routes {
		names = append(names, r.Name)
	}
	for _, r := range p.Rules {
		names = append(names, r.Name)
	}
	for _, l := range p.Links {
		names = append(names, l.Name)
	}
	return names
}

func TestPlan(t *testing.T) {
	lo := link.Link{Index: 1, Name: "lo"}
	cbr0 := link.Link{Index: 2, Name: "cbr0", Kind: "bridge"}
	pod := link.Link{Index: 3, Name: "veth0123abcd", Kind: "veth", Master: 2}
	wg0 := link.Link{Index: 4, Name: "wg0", Kind: "wireguard"}
	wg := link.Link{Index: 5, Name: "wg51820", Kind: "wireguard"}
	mainRule := link.Rule{Family: ip4, Priority: 32765, Table: 252, Name: "main rule"}
	mainRoute := link.Route{Family: ip4, Table: 252, Name: "main route"}
	for _, test := range []struct {
		name  string
		have  Inventory
		known bool
		was   []string
		want  []string
		left  int
	}{
		{name: "nothing", have: Inventory{Links: []link.Link{lo}}},
		{
			name: "links and ports of the bridge, these first",
			have: Inventory{Links: []link.Link{
				lo, cbr0, pod, wg0, wg,
				{Index: 6, Name: "vxlan0", Kind: "vxlan"},
				{Index: 7, Name: "veth0123abce", Kind: "veth"},                // of another bridge, or of none
				{Index: 8, Name: "veth0", Kind: "veth", Master: 2},            // not as CNI names them
				{Index: 9, Name: "veth0123abcg", Kind: "veth", Master: 2},     // nor this
				{Index: 10, Name: "veth0123abcf", Kind: "macvlan", Master: 2}, // nor is this a veth
				{Index: 11, Name: "eth0", Master: 2},
			}},
			want: []string{"veth0123abcd", "cbr0", "wg51820", "vxlan0"},
		},
		{
			name: "of another kind",
			have: Inventory{Links: []link.Link{
				{Index: 2, Name: "cbr0", Kind: "dummy"}, pod, {Index: 5, Name: "wg51821", Kind: "veth"}, {Index: 6, Name: "vxlan0", Kind: "bridge"}, {Index: 7, Name: "geneve0"},
			}},
			left: 4,
		},
		{
			name: "there before", have: Inventory{Links: []link.Link{cbr0, pod, wg}}, known: true,
			was: []string{"link cbr0"}, want: []string{"wg51820"}, left: 1,
		},
		{
			name: "routes before rules, of the public tables alone",
			have: Inventory{
				Routes: []link.Route{
					{Family: ip4, Table: 51820, Name: "a"},
					{Family: ip6, Table: 51899, Name: "b"},
					mainRoute,
					{Family: ip4, Table: 254, Name: "main"},
					{Family: ip4, Table: 255, Name: "local"},
					{Family: ip4, Table: 51819},
					{Family: ip4, Table: 51900},
				},
				Rules: []link.Rule{
					{Family: ip4, Priority: 0, Table: 255, Name: "local"},
					{Family: ip4, Priority: 100, Table: 51820, Name: "c"},
					mainRule,
					{Family: ip4, Priority: 32765, Table: 777},
					{Family: ip4, Priority: 5, Table: 252},
					{Family: ip4, Priority: 32765},
					{Family: ip4, Priority: 32766, Table: 254},
				},
			},
			want: []string{"a", "b", "main route", "c", "main rule"},
		},
		{
			name: "a table 252 that nobody noted and no rule leads to",
			have: Inventory{
				Routes: []link.Route{mainRoute, {Family: ip6, Table: 252, Name: "of the other family"}},
				Rules:  []link.Rule{{Family: ip6, Priority: 32765, Table: 252, Name: "rule of the other family"}},
			},
			want: []string{"of the other family", "rule of the other family"}, left: 1,
		},
		{
			name: "the same on a host that was noted", known: true,
			have: Inventory{Routes: []link.Route{mainRoute}}, want: []string{"main route"},
		},
		{
			name: "routes and rules that were there before", known: true, was: []string{"main route", "main rule"},
			have: Inventory{Routes: []link.Route{mainRoute, {Family: ip4, Table: 252, Name: "later"}}, Rules: []link.Rule{mainRule}},
			want: []string{"later"}, left: 2,
		},
		{
			name: "behind a rule of the host", known: true, was: []string{"theirs"},
			have: Inventory{Rules: []link.Rule{
				{Family: ip4, Priority: 100, Table: 51820, Name: "before it"},
				{Family: ip4, Priority: 100, Table: 51820, Name: "theirs"},
				{Family: ip4, Priority: 100, Table: 51820, Name: "after it"},
				{Family: ip4, Priority: 100, Table: 51821, Name: "to another"},
				{Family: ip6, Priority: 100, Table: 51820, Name: "of IPv6"},
				{Family: ip4, Priority: 101, Table: 51820, Name: "later"},
			}},
			want: []string{"before it", "to another", "of IPv6", "later"}, left: 2,
		},
		{
			name: "wg-quick took a table of that number",
			have: Inventory{
				Links: []link.Link{wg0, wg},
				Routes: []link.Route{
					{Family: ip4, Table: 51820, Device: 4, Name: "of wg0"},
					{Family: ip4, Table: 51821, Device: 5, Name: "ours"},
					{Family: ip6, Table: 51820, Device: 5, Name: "ours of IPv6"},
				},
				Rules: []link.Rule{
					{Family: ip4, Table: 51820, Name: "to wg0"}, {Family: ip4, Table: 51821, Name: "to ours"}, {Family: ip6, Table: 51820, Name: "to ours of IPv6"},
				},
			},
			want: []string{"ours", "ours of IPv6", "to ours", "to ours of IPv6", "wg51820"}, left: 2,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			plan := test.have.Plan(Public(), test.known, func(name string) bool { return slices.Contains(test.was, name) })
			if diff := cmp.Diff(test.want, planned(plan)); diff != "" {
				t.Errorf("removed (-want +got):\n%s", diff)
			}
			if len(plan.Left) != test.left {
				t.Errorf("left %q, want %d", plan.Left, test.left)
			}
			// All that is removed has a name that is noted, but for the ports of a bridge of ours.
			names := test.have.Names(Public())
			for _, name := range planned(plan) {
				if !slices.Contains(names, name) && !slices.Contains(names, "link "+name) && name != pod.Name {
					t.Errorf("%s is removed, and would not be noted", name)
				}
			}
		})
	}
}
