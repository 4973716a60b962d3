package nft

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const accept = 1 // NF_ACCEPT

// Part is something in the ruleset that can be removed without the rest of it.
type Part struct {
	Family uint8
	Table  string
	Chain  string // empty: the whole table
	Rule   uint64 // handle of a rule; 0: the whole chain

	digest string // of what the rule does
}

// Of is the table that the part belongs to, as Table.String has it.
func (p Part) Of() string { return Table{Family: p.Family, Name: p.Table}.String() }

// String names the part. A rule is named by what it does, so that it has the same name in another boot.
func (p Part) String() string {
	switch {
	case p.Chain == "":
		return "table " + p.Of()
	case p.Rule == 0:
		return fmt.Sprintf("chain %s %s", p.Of(), p.Chain)
	}
	return fmt.Sprintf("rule in chain %s %s (%s)", p.Of(), p.Chain, p.digest)
}

// Names are the names of all that Node looks at, whoever made it: what is there before a node is, is not the node's.
func (r *Ruleset) Names() ([]string, error) {
	var names []string
	for _, t := range r.Tables {
		parts, err := t.node(func(Part) bool { return false })
		if err != nil {
			return nil, err
		}
		if sharedTable(t) {
			chains, err := t.chains(func(c chain) bool { return c.base })
			if err != nil {
				return nil, err
			}
			parts = slices.Concat(parts, []Part{{Family: t.Family, Table: t.Name}}, chains)
		}
		for _, p := range parts {
			names = append(names, p.String())
		}
	}
	return names, nil
}

// Node are the parts of r that are a node's, by their public names, but for those that keep says were there
// before. In tables that are shared these are chains, rules that jump there, and rules by their comment; and the
// whole table if nothing but empty chains that accept would stay of it. With all set, keep knows of everything that was
// there: then every such table and chain is a node's, not only where it has written. Tables with an owner are left out.
func (r *Ruleset) Node(all bool, keep func(Part) bool) ([]Part, error) {
	var parts []Part
	for _, t := range r.Tables {
		if t.Owner != 0 {
			continue
		}
		found, err := t.node(keep)
		if err == nil && sharedTable(t) && (all || len(found) > 0) {
			found, err = t.shell(found, all, keep)
		}
		if err != nil {
			return nil, err
		}
		parts = append(parts, found...)
	}
	return parts, nil
}

// shell adds to found what does nothing when found is gone: the whole table, or if all is set single chains.
func (t Table) shell(found []Part, all bool, keep func(Part) bool) ([]Part, error) {
	rest, err := t.without(found)
	if err != nil {
		return nil, err
	}
	empty, err := rest.empty()
	if err != nil {
		return nil, err
	}
	if whole := (Part{Family: t.Family, Table: t.Name}); empty && !keep(whole) {
		return []Part{whole}, nil
	}
	if !all {
		return found, nil
	}
	chains, err := rest.chains(chain.idle)
	if err != nil {
		return nil, err
	}
	return append(found, slices.DeleteFunc(chains, func(p Part) bool { return keep(p) })...), nil
}

// Foreign is t without what is a node's, for saving a table that a node may have written to; false if nothing is left.
func (t Table) Foreign() (Table, bool, error) {
	parts, err := t.node(func(Part) bool { return false })
	if err != nil || len(parts) == 0 {
		return t, err == nil, err
	}
	rest, err := t.without(parts)
	if err != nil {
		return Table{}, false, err
	}
	empty, err := rest.empty()
	return rest, !empty, err
}

// node are the parts of t that are a node's.
func (t Table) node(keep func(Part) bool) ([]Part, error) {
	var parts []Part
	add := func(p Part) {
		if !keep(p) {
			parts = append(parts, p)
		}
	}
	if nodeTable(t) {
		add(Part{Family: t.Family, Table: t.Name})
	}
	if !sharedTable(t) {
		return parts, nil
	}
	// Rules first: a chain can be removed when nothing jumps there.
	rules, err := t.rules()
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if nodeRule(r) && (!nodeChain(r.chain) || keep(Part{Family: t.Family, Table: t.Name, Chain: r.chain})) {
			add(Part{t.Family, t.Name, r.chain, r.handle, r.digest})
		}
	}
	chains, err := t.chains(func(c chain) bool { return nodeChain(c.name) })
	if err != nil {
		return nil, err
	}
	for _, p := range chains {
		add(p)
	}
	return parts, nil
}

// without is t with parts taken out. Taking out the whole table leaves the zero Table.
func (t Table) without(parts []Part) (Table, error) {
	rest := Table{Family: t.Family, Name: t.Name, Owner: t.Owner}
	for _, m := range t.messages {
		attributes, err := parse(m)
		if err != nil {
			return Table{}, err
		}
		chain, handle := "", uint64(0)
		switch o, _ := objectOf(m); o.kind {
		case unix.NFT_MSG_NEWRULE:
			chain, handle = text(find(attributes, nameAttribute)), handleOf(attributes)
		case unix.NFT_MSG_NEWCHAIN:
			chain = text(find(attributes, chainNameAttribute))
		}
		if !slices.ContainsFunc(parts, func(p Part) bool {
			return p.Chain == "" || p.Chain == chain && (p.Rule == 0 || p.Rule == handle)
		}) {
			rest.messages = append(rest.messages, m)
		}
	}
	return rest, nil
}

// chain is what a chain is told by.
type chain struct {
	name    string
	base    bool // packets come here by themselves
	accepts bool // at its end
	rules   int
}

// idle tells of a chain that does nothing with the packets that come by themselves.
func (c chain) idle() bool { return c.base && c.accepts && c.rules == 0 }

// chains are those of t that are wanted.
func (t Table) chains(want func(chain) bool) ([]Part, error) {
	rules := map[string]int{}
	var parts []Part
	for _, m := range slices.Backward(t.messages) { // rules come after chains
		attributes, err := parse(m)
		if err != nil {
			return nil, err
		}
		switch o, _ := objectOf(m); o.kind {
		case unix.NFT_MSG_NEWRULE:
			rules[text(find(attributes, nameAttribute))]++
		case unix.NFT_MSG_NEWCHAIN:
			policy := find(attributes, unix.NFTA_CHAIN_POLICY)
			name := text(find(attributes, chainNameAttribute))
			if want(chain{
				name:    name,
				base:    find(attributes, unix.NFTA_CHAIN_HOOK) != nil,
				accepts: len(policy) == 4 && binary.BigEndian.Uint32(policy) == accept,
				rules:   rules[name],
			}) {
				parts = append(parts, Part{Family: t.Family, Table: t.Name, Chain: name})
			}
		}
	}
	return parts, nil
}

// empty tells of a table in which there is nothing but idle chains.
func (t Table) empty() (bool, error) {
	idle, err := t.chains(chain.idle)
	return len(t.messages) <= 1+len(idle), err
}

// Remove removes parts in one transaction, if the ruleset still is of that generation; otherwise ErrChanged.
func (c *Conn) Remove(generation uint32, parts []Part) error {
	var batch, chains []netlink.Message
	for _, p := range parts {
		attributes := []netlink.Attribute{{Type: tableAttribute, Data: []byte(p.Table + "\x00")}}
		kind := uint16(unix.NFT_MSG_DELTABLE)
		if p.Chain != "" {
			kind = unix.NFT_MSG_DELRULE // without a handle: all rules of the chain
			attributes = append(attributes, netlink.Attribute{Type: nameAttribute, Data: []byte(p.Chain + "\x00")})
		}
		if p.Rule != 0 {
			attributes = append(attributes, netlink.Attribute{Type: unix.NFTA_RULE_HANDLE, Data: binary.BigEndian.AppendUint64(nil, p.Rule)})
		}
		data, err := netlink.MarshalAttributes(attributes)
		if err != nil {
			return err
		}
		batch = append(batch, request(kind, p.Family, 0, data))
		if p.Chain == "" || p.Rule != 0 {
			continue
		}
		attributes[1].Type = chainNameAttribute
		if data, err = netlink.MarshalAttributes(attributes); err != nil {
			return err
		}
		chains = append(chains, request(unix.NFT_MSG_DELCHAIN, p.Family, 0, data))
	}
	// Chains last: they jump to each other.
	if err := c.transaction(generation, slices.Concat(batch, chains)); err != nil {
		return fmt.Errorf("remove from ruleset: %w", err)
	}
	return nil
}
