package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Ruleset is what the packet filter held at one generation.
type Ruleset struct {
	Generation uint32
	Tables     []Table
}

// Table is a table with all that is in it.
type Table struct {
	Family uint8
	Name   string
	Owner  uint32 // netlink port of the live program that alone may change it; 0: none

	messages []netlink.Message // as dumped, in the order in which they can be replayed
}

// String is family and name, as in nft's own commands.
func (t Table) String() string { return familyName(t.Family) + " " + t.Name }

func familyName(family uint8) string {
	switch family {
	case unix.NFPROTO_INET:
		return "inet"
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_ARP:
		return "arp"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	case unix.NFPROTO_IPV6:
		return "ip6"
	}
	return fmt.Sprintf("family-%d", family)
}

// What x/sys does not name, and the attributes that every kind of object has.
const (
	tableAttribute      = 1  // name of the table, in every kind of message
	nameAttribute       = 2  // name of the set, object, flowtable; chain of a rule; set of elements
	chainNameAttribute  = 3  // NFTA_CHAIN_NAME
	ownerAttribute      = 7  // NFTA_TABLE_OWNER
	chainFlagsAttribute = 10 // NFTA_CHAIN_FLAGS
	keyEndAttribute     = 10 // NFTA_SET_ELEM_KEY_END
	chainBinding        = 4  // NFT_CHAIN_BINDING
)

// object is a kind of message in a dump.
type object struct {
	kind uint16 // NFT_MSG_NEW…
	get  uint16 // NFT_MSG_GET…
	name string
	// input are the attributes that a kernel takes. It dumps more: handles, use counts, and what newer ones tell.
	// Naming what is taken also fits kernels to come.
	input []uint16
}

// objects are in the order in which they refer to each other, but for set elements, which come after chains.
func objects() []object {
	return []object{
		{unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_GETTABLE, "table", []uint16{1, 2, 6}},
		{unix.NFT_MSG_NEWOBJ, unix.NFT_MSG_GETOBJ, "object", []uint16{1, 2, 3, 4, 8}},
		{unix.NFT_MSG_NEWSET, unix.NFT_MSG_GETSET, "set", []uint16{1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 17, 18}},
		{unix.NFT_MSG_NEWFLOWTABLE, unix.NFT_MSG_GETFLOWTABLE, "flowtable", []uint16{1, 2, 3, 7}},
		{unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_GETCHAIN, "chain", []uint16{1, 3, 4, 5, 7, 8, 10, 12}},
		elements(),
		{unix.NFT_MSG_NEWRULE, unix.NFT_MSG_GETRULE, "rule", []uint16{1, 2, 4, 5, 7}},
	}
}

func elements() object {
	return object{unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_GETSETELEM, "elements of set", []uint16{1, 2, 3}}
}

func objectOf(m netlink.Message) (object, bool) {
	for _, o := range objects() {
		if m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|netlink.HeaderType(o.kind) {
			return o, true
		}
	}
	return object{}, false
}

// describe names the object of m for a message.
func describe(m netlink.Message) string {
	o, ok := objectOf(m)
	if !ok {
		// What removes an object comes two after what makes it.
		m.Header.Type -= unix.NFT_MSG_DELTABLE - unix.NFT_MSG_NEWTABLE
		o, ok = objectOf(m)
	}
	attributes, err := parse(m)
	if !ok || err != nil {
		return "batch"
	}
	name := text(find(attributes, nameAttribute))
	switch o.kind {
	case unix.NFT_MSG_NEWTABLE:
		name = ""
	case unix.NFT_MSG_NEWCHAIN:
		name = text(find(attributes, chainNameAttribute))
	case unix.NFT_MSG_NEWRULE:
		name = "of chain " + name
	}
	return strings.TrimSpace(fmt.Sprintf("table %s %s: %s %s",
		familyName(m.Data[0]), text(find(attributes, tableAttribute)), o.name, name))
}

// text is a string attribute without its terminating NUL.
func text(data []byte) string { return strings.TrimRight(string(data), "\x00") }

// Save dumps the ruleset, again while others change it.
func (c *Conn) Save() (*Ruleset, error) {
	for range attempts {
		generation, err := c.generation()
		if err != nil {
			return nil, err
		}
		tables, err := c.tables()
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINTR) || errors.Is(err, errIncomplete) {
			continue // something went away between two dumps, or moved during one
		}
		if err != nil {
			return nil, err
		}
		after, err := c.generation()
		if err != nil {
			return nil, err
		}
		if after == generation {
			return &Ruleset{generation, tables}, nil
		}
	}
	return nil, fmt.Errorf("save ruleset: %w, %d times", ErrChanged, attempts)
}

func (c *Conn) tables() ([]Table, error) {
	var tables []Table
	for _, o := range objects() {
		var messages []netlink.Message
		var err error
		if o.kind == unix.NFT_MSG_NEWSETELEM {
			messages, err = c.allElements(tables)
		} else {
			messages, err = c.dump(o.get, unix.AF_UNSPEC, nil)
		}
		if err != nil {
			return nil, err
		}
		if tables, err = sortIn(tables, o, messages); err != nil {
			return nil, err
		}
	}
	return tables, nil
}

// allElements dumps the elements of every set; there is no dump of all.
func (c *Conn) allElements(tables []Table) ([]netlink.Message, error) {
	var all []netlink.Message
	for _, table := range tables {
		for _, m := range table.messages {
			if o, _ := objectOf(m); o.kind != unix.NFT_MSG_NEWSET {
				continue
			}
			attributes, err := parse(m)
			if err != nil {
				return nil, err
			}
			messages, err := c.dump(unix.NFT_MSG_GETSETELEM, table.Family, []netlink.Attribute{
				{Type: tableAttribute, Data: find(attributes, tableAttribute)},
				{Type: nameAttribute, Data: find(attributes, nameAttribute)},
			})
			if err == nil {
				err = complete(messages)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", describe(m), err)
			}
			all = append(all, messages...)
		}
	}
	return all, nil
}

var errIncomplete = errors.New("elements were moved during the dump")

// complete tells by elements that come twice that others are missing: the kernel grows large
// sets in the background after they were filled, and a dump meanwhile has the right number of elements only.
func complete(messages []netlink.Message) error {
	seen := map[string]bool{}
	for _, m := range messages {
		attributes, err := parse(m)
		if err != nil {
			return err
		}
		list, err := netlink.UnmarshalAttributes(find(attributes, unix.NFTA_SET_ELEM_LIST_ELEMENTS))
		if err != nil {
			return err
		}
		for _, element := range list {
			attributes, err := netlink.UnmarshalAttributes(element.Data)
			if err != nil {
				return err
			}
			// An interval may begin where another ends: the flags tell them apart.
			key := fmt.Sprintf("%x %x %x", find(attributes, unix.NFTA_SET_ELEM_KEY),
				find(attributes, keyEndAttribute), find(attributes, unix.NFTA_SET_ELEM_FLAGS))
			if seen[key] {
				return errIncomplete
			}
			seen[key] = true
		}
	}
	return nil
}

// sortIn gives each message to its table; those of kind table make one.
func sortIn(tables []Table, o object, messages []netlink.Message) ([]Table, error) {
	for _, m := range messages {
		attributes, err := parse(m)
		if err != nil {
			return nil, err
		}
		family, name := m.Data[0], text(find(attributes, tableAttribute))
		if o.kind == unix.NFT_MSG_NEWTABLE {
			table := Table{Family: family, Name: name}
			if owner := find(attributes, ownerAttribute); len(owner) == 4 {
				table.Owner = binary.BigEndian.Uint32(owner)
			}
			tables = append(tables, table)
		}
		found := false
		for i := range tables {
			if tables[i].Family == family && tables[i].Name == name {
				tables[i].messages = append(tables[i].messages, m)
				found = true
			}
		}
		if !found {
			return nil, fmt.Errorf("%s: %w", describe(m), unix.ENOENT)
		}
	}
	return tables, nil
}

// Flush removes every table but those with an owner, if the ruleset still is of that generation; otherwise ErrChanged.
func (c *Conn) Flush(generation uint32) error {
	all := request(unix.NFT_MSG_DELTABLE, unix.AF_UNSPEC, 0, nil)
	if err := c.transaction(generation, []netlink.Message{all}); err != nil {
		return fmt.Errorf("flush ruleset: %w", err)
	}
	return nil
}

// Restore makes tables, as they were saved, in one transaction. One that exists already, or
// that the kernel refuses, fails it all: then nothing has changed. Running timeouts of set elements
// go on from where they were at the time of Save.
func (c *Conn) Restore(tables []Table) error {
	var batch []netlink.Message
	setID := uint32(0)
	for _, o := range objects() {
		for _, table := range tables {
			messages, err := table.of(o)
			if err != nil {
				return err
			}
			for _, m := range messages {
				setID++
				input, err := o.clean(m, setID)
				if err != nil {
					return err
				}
				batch = append(batch, input)
			}
		}
	}
	if len(batch) == 0 {
		return nil
	}
	if err := c.transaction(0, batch); err != nil {
		return fmt.Errorf("restore ruleset: %w", err)
	}
	return nil
}
