package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// MarshalBinary is the table as the kernel dumped it: netlink messages, in the byte order of this host.
func (t Table) MarshalBinary() ([]byte, error) {
	var data []byte
	for _, m := range t.messages {
		m.Header = netlink.Header{
			Type:   m.Header.Type,
			Length: uint32(unix.NLMSG_HDRLEN + len(m.Data)),
		}
		message, err := m.MarshalBinary()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", describe(m), err)
		}
		data = append(data, message...)
	}
	return data, nil
}

// UnmarshalBinary reads what MarshalBinary made. The owner is not in it: tables with one are not saved.
func (t *Table) UnmarshalBinary(data []byte) error {
	messages, err := syscall.ParseNetlinkMessage(data)
	if err != nil {
		return fmt.Errorf("read saved table: %w", err)
	}
	if len(messages) == 0 {
		return errors.New("read saved table: nothing in it")
	}
	*t = Table{}
	for i, message := range messages {
		m := netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(message.Header.Type)}, Data: message.Data}
		o, ok := objectOf(m)
		if !ok || len(m.Data) < headerSize || (i == 0) != (o.kind == unix.NFT_MSG_NEWTABLE) {
			return errors.New("read saved table: not a table and what is in it")
		}
		if i == 0 {
			attributes, err := parse(m)
			if err != nil {
				return fmt.Errorf("read saved table: %w", err)
			}
			t.Family, t.Name = m.Data[0], text(find(attributes, tableAttribute))
		}
		t.messages = append(t.messages, m)
	}
	return nil
}

// of returns the messages of one kind, in the order in which the kernel takes them.
func (t Table) of(o object) ([]netlink.Message, error) {
	var found []netlink.Message
	bound := map[string]bool{} // chains without a name of their own: jump { … }
	for _, m := range t.messages {
		kind, _ := objectOf(m)
		if kind.kind == o.kind {
			found = append(found, m)
		}
		if kind.kind == unix.NFT_MSG_NEWCHAIN {
			attributes, err := parse(m)
			if err != nil {
				return nil, err
			}
			if flags := find(attributes, chainFlagsAttribute); len(flags) == 4 && binary.BigEndian.Uint32(flags)&chainBinding != 0 {
				bound[text(find(attributes, chainNameAttribute))] = true
			}
		}
	}
	if o.kind != unix.NFT_MSG_NEWRULE || len(bound) == 0 {
		return found, nil
	}
	// Rules of bound chains come first: the rule that jumps there binds the chain, and closes it.
	var first, rest []netlink.Message
	for _, rule := range found {
		attributes, err := parse(rule)
		if err != nil {
			return nil, err
		}
		if bound[text(find(attributes, nameAttribute))] {
			first = append(first, rule)
		} else {
			rest = append(rest, rule)
		}
	}
	return append(first, rest...), nil
}
