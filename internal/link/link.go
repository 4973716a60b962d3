// Package link lists and removes links, routes and policy rules of a network namespace over rtnetlink.
//
// What is removed is what the kernel has dumped, message for message: ways through types lose the action of a
// policy rule or the nexthop id of a route, and then miss it, or hit another. So the package is on raw netlink.
package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ErrNotPermitted says that CAP_NET_ADMIN is missing.
var ErrNotPermitted = errors.New("rtnetlink: not permitted, CAP_NET_ADMIN is missing")

// attempts to get a dump that nobody changed meanwhile.
const attempts = 20

// Conn is a connection to rtnetlink of one network namespace.
type Conn struct{ netlink *netlink.Conn }

// Dial connects to rtnetlink of network namespace netns, an open file; 0 is the caller's own.
func Dial(netns int) (*Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("connect to rtnetlink: %w", err)
	}
	return &Conn{conn}, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.netlink.Close() }

// Link is a network interface.
type Link struct {
	Index  uint32
	Name   string
	Kind   string // "bridge", "vxlan", …; empty for a device
	Master uint32 // index of the bridge that it is a port of, 0: none
}

// String is the name.
func (l Link) String() string { return "link " + l.Name }

// Links are all links.
func (c *Conn) Links() ([]Link, error) {
	messages, err := c.dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, unix.AF_UNSPEC, unix.SizeofIfInfomsg)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	links := make([]Link, len(messages))
	for i, m := range messages {
		info, err := netlink.UnmarshalAttributes(m.find(unix.IFLA_LINKINFO))
		if err != nil {
			return nil, fmt.Errorf("list links: %w", err)
		}
		links[i] = Link{
			Index:  binary.NativeEndian.Uint32(m.header[4:]),
			Name:   text(m.find(unix.IFLA_IFNAME)),
			Kind:   text(find(info, unix.IFLA_INFO_KIND)),
			Master: m.number(unix.IFLA_MASTER),
		}
		if links[i].Index == 0 || links[i].Name == "" {
			return nil, errors.New("list links: one without index or name")
		}
	}
	return links, nil
}

// RemoveLink removes l and says whether it was there.
func (c *Conn) RemoveLink(l Link) (removed bool, err error) {
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:], l.Index)
	return c.remove(unix.RTM_DELLINK, header, nil, unix.ENODEV)
}

// message is an answer to a dump.
type message struct {
	header     []byte
	attributes []netlink.Attribute
}

func (m message) find(kind uint16) []byte { return find(m.attributes, kind) }

// number is the attribute kind as a number, 0 where there is none.
func (m message) number(kind uint16) uint32 {
	if data := m.find(kind); len(data) == 4 {
		return binary.NativeEndian.Uint32(data)
	}
	return 0
}

func find(attributes []netlink.Attribute, kind uint16) []byte {
	for _, a := range attributes {
		if kindOf(a) == kind {
			return a.Data
		}
	}
	return nil
}

func kindOf(a netlink.Attribute) uint16 {
	return a.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
}

// text is a string attribute without its terminating NUL.
func text(data []byte) string {
	if end := slices.Index(data, 0); end >= 0 {
		data = data[:end]
	}
	return string(data)
}

// dump asks get of family and returns the answers, each with a header of size bytes. A family that the kernel
// does not have is empty. A message that cannot be read is an error: half an inventory authorises nothing.
func (c *Conn) dump(get, answer uint16, family uint8, size int) ([]message, error) {
	header := make([]byte, size)
	header[0] = family
	for range attempts {
		answers, err := c.netlink.Execute(netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(get), Flags: netlink.Request | netlink.Dump},
			Data:   header,
		})
		switch {
		case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
			return nil, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, explain(err)
		}
		messages, whole, err := read(answers, answer, family, size)
		if err != nil || whole {
			return messages, err
		}
	}
	return nil, fmt.Errorf("changed during each of %d dumps", attempts)
}

// read parses the answers to a dump. It is not whole when the kernel says that something moved meanwhile.
func read(answers []netlink.Message, kind uint16, family uint8, size int) (messages []message, whole bool, err error) {
	for _, m := range answers {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return nil, false, nil
		}
		if m.Header.Type != netlink.HeaderType(kind) || len(m.Data) < size {
			return nil, false, fmt.Errorf("unexpected answer of type %d, %d bytes", m.Header.Type, len(m.Data))
		}
		if family != unix.AF_UNSPEC && m.Data[0] != family {
			continue // a kernel without that family answers for all others
		}
		attributes, err := netlink.UnmarshalAttributes(m.Data[size:])
		if err != nil {
			return nil, false, err
		}
		messages = append(messages, message{m.Data[:size], attributes})
	}
	return messages, true, nil
}

// remove sends a request that removes; gone are the errors that say that nothing was there.
func (c *Conn) remove(kind uint16, header []byte, attributes []netlink.Attribute, gone ...error) (bool, error) {
	data, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		return false, err
	}
	_, err = c.netlink.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(slices.Clone(header), data...),
	})
	if slices.ContainsFunc(gone, func(e error) bool { return errors.Is(err, e) }) {
		return false, nil
	}
	return err == nil, explain(err)
}

func explain(err error) error {
	if errors.Is(err, unix.EPERM) {
		return ErrNotPermitted
	}
	return err
}
