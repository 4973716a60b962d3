package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// clean makes a message that was dumped one that the kernel takes.
func (o object) clean(m netlink.Message, setID uint32) (netlink.Message, error) {
	dumped, err := parse(m)
	if err != nil {
		return netlink.Message{}, err
	}
	var kept []netlink.Attribute
	for _, kind := range o.input {
		for _, a := range dumped {
			if kindOf(a) == kind {
				kept = append(kept, a)
			}
		}
	}
	flags := netlink.Create
	switch o.kind {
	case unix.NFT_MSG_NEWTABLE:
		flags |= netlink.Excl
	case unix.NFT_MSG_NEWRULE:
		flags |= netlink.Append
		if kept, err = cleanRule(kept); err != nil {
			return netlink.Message{}, fmt.Errorf("%s: %w", describe(m), err)
		}
	case unix.NFT_MSG_NEWSET:
		// Only names are used to refer to sets, but a new one must have an id.
		kept = append(kept, netlink.Attribute{Type: unix.NFTA_SET_ID, Data: binary.BigEndian.AppendUint32(nil, setID)})
	}
	data, err := netlink.MarshalAttributes(kept)
	return request(o.kind, m.Data[0], flags, data), err
}

// expression is one step of a rule.
type expression struct {
	name string
	data []netlink.Attribute
}

// number is the attribute kind of e as a big-endian number, or -1.
func (e expression) number(kind uint16) int64 {
	if data := find(e.data, kind); len(data) == 4 {
		return int64(binary.BigEndian.Uint32(data))
	}
	return -1
}

func cleanRule(attributes []netlink.Attribute) ([]netlink.Attribute, error) {
	for i, a := range attributes {
		if kindOf(a) != unix.NFTA_RULE_EXPRESSIONS {
			continue
		}
		list, err := netlink.UnmarshalAttributes(a.Data)
		if err != nil {
			return nil, err
		}
		expressions := make([]expression, len(list))
		for j := range list {
			if expressions[j], err = cleanExpression(&list[j]); err != nil {
				return nil, err
			}
		}
		attributes[i].Length = 0 // computed again
		if attributes[i].Data, err = netlink.MarshalAttributes(list); err != nil {
			return nil, err
		}
		compat, err := compat(expressions)
		if err != nil {
			return nil, err
		}
		return append(attributes, compat...), nil
	}
	return attributes, nil
}

// cleanExpression drops what the kernel dumps of an exthdr expression that writes, and then refuses: its flags.
func cleanExpression(element *netlink.Attribute) (expression, error) {
	parts, err := netlink.UnmarshalAttributes(element.Data)
	if err != nil {
		return expression{}, err
	}
	e := expression{name: text(find(parts, unix.NFTA_EXPR_NAME))}
	for i := range parts {
		if kindOf(parts[i]) != unix.NFTA_EXPR_DATA || e.name == "match" || e.name == "target" {
			continue
		}
		if e.data, err = netlink.UnmarshalAttributes(parts[i].Data); err != nil {
			return expression{}, err
		}
		if e.name != "exthdr" || find(e.data, unix.NFTA_EXTHDR_SREG) == nil {
			continue
		}
		var kept []netlink.Attribute
		for _, a := range e.data {
			if kindOf(a) != unix.NFTA_EXTHDR_FLAGS {
				kept = append(kept, a)
			}
		}
		parts[i].Length = 0
		if parts[i].Data, err = netlink.MarshalAttributes(kept); err != nil {
			return expression{}, err
		}
	}
	element.Length = 0
	element.Data, err = netlink.MarshalAttributes(parts)
	return e, err
}

// compat is what iptables-nft tells the kernel beside the expressions, and the kernel does not dump: the
// protocol that the rule matches. Extensions such as multiport are refused without it. It is read off the expressions.
func compat(expressions []expression) ([]netlink.Attribute, error) {
	extensions, loaded := false, false
	protocol, flags := uint32(0), uint32(0)
	for _, e := range expressions {
		wasLoaded := loaded
		loaded = false
		switch e.name {
		case "match", "target":
			extensions = true
		case "meta":
			loaded = e.number(unix.NFTA_META_KEY) == unix.NFT_META_L4PROTO
		case "payload": // older releases: the protocol of IPv4, the next header of IPv6
			offset := e.number(unix.NFTA_PAYLOAD_OFFSET)
			loaded = e.number(unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_NETWORK_HEADER &&
				e.number(unix.NFTA_PAYLOAD_LEN) == 1 && (offset == 9 || offset == 6)
		case "cmp":
			data, err := netlink.UnmarshalAttributes(find(e.data, unix.NFTA_CMP_DATA))
			if err != nil {
				return nil, err
			}
			value := find(data, unix.NFTA_DATA_VALUE)
			if !wasLoaded || len(value) == 0 {
				continue
			}
			protocol = uint32(value[0])
			if e.number(unix.NFTA_CMP_OP) == unix.NFT_CMP_NEQ {
				flags = unix.NFT_RULE_COMPAT_F_INV
			}
		}
	}
	if !extensions || protocol == 0 {
		return nil, nil
	}
	data, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_RULE_COMPAT_PROTO, Data: binary.BigEndian.AppendUint32(nil, protocol)},
		{Type: unix.NFTA_RULE_COMPAT_FLAGS, Data: binary.BigEndian.AppendUint32(nil, flags)},
	})
	return []netlink.Attribute{{Type: unix.NLA_F_NESTED | unix.NFTA_RULE_COMPAT, Data: data}}, err
}
