package link

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// headerSize is that of rtmsg and of fib_rule_hdr, which agree but for the names: family, lengths of destination
// and source, tos, table (or its low byte), protocol, scope, type (or action), flags.
const headerSize = unix.SizeofRtMsg

// families are those that have routes.
func families() []uint8 { return []uint8{unix.AF_INET, unix.AF_INET6} }

func familyName(family uint8) string {
	if family == unix.AF_INET6 {
		return "ip6"
	}
	return "ip"
}

// Route is a route of any table.
type Route struct {
	Family uint8
	Table  uint32
	Device uint32 // index of the link that it goes through, 0: none, or several
	Name   string // the route about as ip shows it, by what stays the same over a reboot

	message message
}

// String is the name.
func (r Route) String() string { return r.Name }

// Routes are those of all tables, of both families. links give devices their names.
func (c *Conn) Routes(links []Link) ([]Route, error) {
	var routes []Route
	for _, family := range families() {
		messages, err := c.dump(unix.RTM_GETROUTE, unix.RTM_NEWROUTE, family, headerSize)
		if err != nil {
			return nil, fmt.Errorf("list routes of %s: %w", familyName(family), err)
		}
		for _, m := range messages {
			if binary.NativeEndian.Uint32(m.header[8:])&unix.RTM_F_CLONED != 0 {
				continue // a cached path, not a route
			}
			routes = append(routes, route(m, links))
		}
	}
	return routes, nil
}

func route(m message, links []Link) Route {
	r := Route{Family: m.header[0], Table: m.table(unix.RTA_TABLE), Device: m.number(unix.RTA_OIF), message: m}
	words := []string{familyName(r.Family), "route"}
	if name := typeName(m.header[7]); name != "" {
		words = append(words, name)
	}
	words = append(words, m.prefix(unix.RTA_DST, 1))
	if m.header[2] != 0 {
		words = append(words, "from", m.prefix(unix.RTA_SRC, 2))
	}
	if m.header[3] != 0 {
		words = append(words, fmt.Sprintf("tos %#x", m.header[3]))
	}
	if id := m.number(routeNexthop); id != 0 {
		words = append(words, fmt.Sprintf("nhid %d", id))
	}
	if via, ok := netip.AddrFromSlice(m.find(unix.RTA_GATEWAY)); ok {
		words = append(words, "via", via.String())
	}
	if at := slices.IndexFunc(links, func(l Link) bool { return l.Index == r.Device }); at >= 0 {
		words = append(words, "dev", links[at].Name)
	}
	if m.find(unix.RTA_MULTIPATH) != nil {
		words = append(words, "multipath")
	}
	words = append(words, fmt.Sprintf("table %d metric %d", r.Table, m.number(unix.RTA_PRIORITY)))
	r.Name = strings.Join(words, " ")
	return r
}

func typeName(kind byte) string {
	switch kind {
	case unix.RTN_UNICAST:
		return ""
	case unix.RTN_BLACKHOLE:
		return "blackhole"
	case unix.RTN_UNREACHABLE:
		return "unreachable"
	case unix.RTN_PROHIBIT:
		return "prohibit"
	case unix.RTN_THROW:
		return "throw"
	}
	return fmt.Sprintf("type-%d", kind)
}

// table is the number of the table, which the header has no room for when it is above 255.
func (m message) table(kind uint16) uint32 {
	if n := m.number(kind); n != 0 {
		return n
	}
	return uint32(m.header[4])
}

// prefix is the address in attribute kind with the length at that place of the header.
func (m message) prefix(kind uint16, at int) string {
	address, ok := netip.AddrFromSlice(m.find(kind))
	if !ok {
		return "default"
	}
	return netip.PrefixFrom(address, int(m.header[at])).String()
}

// RemoveRoute removes r and says whether it was there. A route of IPv4 without a metric is told from one with a metric
// only by coming first, so routes are to be removed in the order in which they are listed.
func (c *Conn) RemoveRoute(r Route) (removed bool, err error) {
	header := slices.Clone(r.message.header)
	clear(header[8:]) // flags tell of the state of the link
	return c.remove(unix.RTM_DELROUTE, header, selector(r.message), unix.ESRCH, unix.ENODEV)
}

// selector is what tells a route from others. The kernel takes a nexthop either by its id or by what it is.
func selector(m message) []netlink.Attribute {
	kinds := []uint16{unix.RTA_DST, unix.RTA_SRC, unix.RTA_PRIORITY, unix.RTA_PREFSRC, unix.RTA_TABLE}
	if m.find(routeNexthop) != nil {
		kinds = append(kinds, routeNexthop)
	} else {
		kinds = append(kinds, unix.RTA_OIF, unix.RTA_GATEWAY, unix.RTA_VIA, unix.RTA_MULTIPATH)
	}
	var kept []netlink.Attribute
	for _, a := range m.attributes {
		if slices.Contains(kinds, kindOf(a)) {
			kept = append(kept, a)
		}
	}
	return kept
}

// Rule is a policy rule.
type Rule struct {
	Family   uint8
	Priority uint32
	Table    uint32 // that it looks routes up in; 0: it does something else
	Name     string // the rule about as ip shows it; no two different rules have the same

	message message
}

// String is the name.
func (r Rule) String() string { return r.Name }

// What x/sys does not name.
const (
	routeNexthop    = 30 // RTA_NH_ID
	ruleTable       = 15 // FRA_TABLE
	rulePriority    = 6  // FRA_PRIORITY
	ruleSource      = 2  // FRA_SRC
	ruleDestination = 1  // FRA_DST
	ruleInput       = 3  // FRA_IIFNAME
	ruleOutput      = 17 // FRA_OIFNAME
	ruleMark        = 10 // FRA_FWMARK
	ruleMask        = 16 // FRA_FWMASK
	ruleSuppress    = 14 // FRA_SUPPRESS_PREFIXLEN
	ruleProtocol    = 21 // FRA_PROTOCOL
	ruleInvert      = 2  // FIB_RULE_INVERT
	lookup          = 1  // FR_ACT_TO_TBL
)

// Rules are all policy rules, of both families.
func (c *Conn) Rules() ([]Rule, error) {
	var rules []Rule
	for _, family := range families() {
		messages, err := c.dump(unix.RTM_GETRULE, unix.RTM_NEWRULE, family, headerSize)
		if err != nil {
			return nil, fmt.Errorf("list rules of %s: %w", familyName(family), err)
		}
		for _, m := range messages {
			rules = append(rules, rule(m))
		}
	}
	return rules, nil
}

func rule(m message) Rule {
	r := Rule{Family: m.header[0], Priority: m.number(rulePriority), message: m}
	words := []string{fmt.Sprintf("%s rule %d:", familyName(r.Family), r.Priority)}
	if m.flags()&ruleInvert != 0 {
		words = append(words, "not")
	}
	words = append(words, "from", strings.Replace(m.prefix(ruleSource, 2), "default", "all", 1))
	if m.header[1] != 0 {
		words = append(words, "to", m.prefix(ruleDestination, 1))
	}
	if m.header[3] != 0 {
		words = append(words, fmt.Sprintf("tos %#x", m.header[3]))
	}
	for _, a := range m.attributes {
		words = append(words, selectorText(a)...)
	}
	if m.header[7] == lookup {
		r.Table = m.table(ruleTable)
		words = append(words, fmt.Sprintf("lookup %d", r.Table))
	} else {
		words = append(words, fmt.Sprintf("action %d", m.header[7]))
	}
	r.Name = strings.Join(words, " ")
	return r
}

func (m message) flags() uint32 { return binary.NativeEndian.Uint32(m.header[8:]) }

// RemoveRule removes r and says whether it was there. The kernel removes the first rule of that priority and table that
// has all that r has; it may have more. So nothing but r may come first.
func (c *Conn) RemoveRule(r Rule) (removed bool, err error) {
	header := slices.Clone(r.message.header)
	binary.NativeEndian.PutUint32(header[8:], r.message.flags()&ruleInvert) // the others tell of state
	return c.remove(unix.RTM_DELRULE, header, r.message.attributes, unix.ENOENT)
}

// selectorText is what a says of the packets that a rule is for.
func selectorText(a netlink.Attribute) []string {
	switch kind := kindOf(a); kind {
	case ruleTable, rulePriority, ruleSource, ruleDestination, ruleProtocol:
		return nil // told elsewhere, or who made it
	case ruleInput:
		return []string{"iif", text(a.Data)}
	case ruleOutput:
		return []string{"oif", text(a.Data)}
	case ruleMark, ruleMask, ruleSuppress:
		if len(a.Data) != 4 {
			return nil
		}
		n := binary.NativeEndian.Uint32(a.Data)
		switch {
		case kind == ruleMark:
			return []string{fmt.Sprintf("fwmark %#x", n)}
		case kind == ruleMask:
			return []string{fmt.Sprintf("mask %#x", n)}
		case n == 1<<32-1:
			return nil // not set
		}
		return []string{fmt.Sprintf("suppress_prefixlength %d", n)}
	default:
		return []string{fmt.Sprintf("attribute-%d %x", kind, a.Data)}
	}
}
