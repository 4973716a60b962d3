// Package nft saves, clears and restores the nftables ruleset of the host over netlink.
//
// A foreign ruleset is never understood here: what the kernel dumps is kept as it is and
// replayed, because every way through types or text loses part of it; so the package is on
// raw netlink. It is larger than others because saving and replaying must know the same attributes
// of the same objects.
package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Errors that callers act on.
var (
	// ErrNotPermitted: CAP_NET_ADMIN is missing, without which nothing can be read either.
	ErrNotPermitted = errors.New("nftables: not permitted, CAP_NET_ADMIN is missing")
	// ErrUnsupported: the kernel has no netfilter netlink, or no nf_tables.
	ErrUnsupported = errors.New("nftables: the kernel has none")
	// ErrChanged: the ruleset is not the one that was saved any more. Nothing was done.
	ErrChanged = errors.New("nftables: the ruleset was changed meanwhile")
)

const (
	socketBuffer = 32 << 20 // a batch is one datagram
	headerSize   = 4        // nfgenmsg: family, version, resource
	attempts     = 20       // to dump a ruleset that does not change meanwhile
)

// Conn is a connection to the packet filter of one network namespace.
type Conn struct{ netlink *netlink.Conn }

// Dial connects to the packet filter of network namespace netns, an open file; 0 is the caller's own.
// It tells ErrUnsupported and ErrNotPermitted apart.
func Dial(netns int) (*Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, fmt.Errorf("%w: netfilter netlink: %w", ErrUnsupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to netfilter: %w", err)
	}
	c := &Conn{conn}
	if _, err := c.generation(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// Best effort: without the buffers only very large rulesets fail, and say so.
	_ = conn.SetReadBuffer(socketBuffer)
	_ = conn.SetWriteBuffer(socketBuffer)
	return c, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.netlink.Close() }

// generation counts the transactions of the packet filter.
func (c *Conn) generation() (uint32, error) {
	answers, err := c.netlink.Execute(request(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, 0, nil))
	switch {
	case errors.Is(err, unix.EPERM):
		return 0, ErrNotPermitted
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return 0, fmt.Errorf("%w: nf_tables: %w", ErrUnsupported, err)
	case err != nil:
		return 0, fmt.Errorf("read ruleset generation: %w", err)
	}
	for _, answer := range answers {
		attributes, err := parse(answer)
		if err != nil {
			return 0, err
		}
		if id := find(attributes, unix.NFTA_GEN_ID); len(id) == 4 {
			return binary.BigEndian.Uint32(id), nil
		}
	}
	return 0, errors.New("read ruleset generation: no answer")
}

// dump returns the messages that the kernel answers kind with.
func (c *Conn) dump(kind uint16, family uint8, attributes []netlink.Attribute) ([]netlink.Message, error) {
	data, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		return nil, err
	}
	messages, err := c.netlink.Execute(request(kind, family, netlink.Dump, data))
	if err != nil {
		return nil, fmt.Errorf("dump nftables: %w", err)
	}
	return messages, nil
}

// transaction does messages, all or none. If generation is not 0 and the ruleset's is another, that is ErrChanged.
func (c *Conn) transaction(generation uint32, messages []netlink.Message) error {
	begin := batch(unix.NFNL_MSG_BATCH_BEGIN)
	if generation != 0 {
		id, err := netlink.MarshalAttributes([]netlink.Attribute{
			{Type: unix.NFNL_BATCH_GENID, Data: binary.BigEndian.AppendUint32(nil, generation)},
		})
		if err != nil {
			return err
		}
		begin.Data = append(begin.Data, id...)
	}
	all := slices.Concat([]netlink.Message{begin}, messages, []netlink.Message{batch(unix.NFNL_MSG_BATCH_END)})
	// One acknowledgement is enough: errors are sent for every message that has one.
	last := len(messages)
	all[last].Header.Flags |= netlink.Acknowledge
	sent, err := c.netlink.SendMessages(all)
	if err != nil {
		return fmt.Errorf("send to netfilter: %w", err)
	}
	return c.result(sent, sent[last].Header.Sequence)
}

// result reads the answers to a transaction. The kernel has queued all of them before the send returned. The
// library's own receiving would lose which message was refused.
func (c *Conn) result(sent []netlink.Message, last uint32) error {
	raw, err := c.netlink.SyscallConn()
	if err != nil {
		return err
	}
	var answers []byte
	var failed error
	err = raw.Control(func(fd uintptr) {
		buffer := make([]byte, 1<<20)
		for {
			n, _, err := unix.Recvfrom(int(fd), buffer, unix.MSG_DONTWAIT)
			if err != nil {
				if !errors.Is(err, unix.EAGAIN) {
					failed = os.NewSyscallError("recvfrom", err)
				}
				return
			}
			answers = append(answers, buffer[:n]...)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("read netfilter's answer: %w", err)
	}
	return verdict(sent, last, answers)
}

// verdict is the first error in answers, or that the last message was not acknowledged.
func verdict(sent []netlink.Message, last uint32, answers []byte) error {
	parsed, err := syscall.ParseNetlinkMessage(answers)
	if err != nil {
		return fmt.Errorf("read netfilter's answer: %w", err)
	}
	done := false
	for _, answer := range parsed {
		if answer.Header.Type != unix.NLMSG_ERROR || len(answer.Data) < 4 {
			continue
		}
		number := syscall.Errno(-int32(binary.NativeEndian.Uint32(answer.Data)))
		switch number {
		case 0:
			done = done || answer.Header.Seq == last
			continue
		case unix.ERESTART:
			return ErrChanged
		case unix.EPERM:
			return ErrNotPermitted
		default:
			at := slices.IndexFunc(sent, func(m netlink.Message) bool { return m.Header.Sequence == answer.Header.Seq })
			if at < 0 {
				return number
			}
			return fmt.Errorf("%s: %w", describe(sent[at]), number)
		}
	}
	if !done {
		return errors.New("netfilter did not answer")
	}
	return nil
}

func batch(kind netlink.HeaderType) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
	}
}

func request(kind uint16, family uint8, flags netlink.HeaderFlags, attributes []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attributes...),
	}
}

// parse returns the attributes of m.
func parse(m netlink.Message) ([]netlink.Attribute, error) {
	if len(m.Data) < headerSize {
		return nil, errors.New("nftables: short message")
	}
	return netlink.UnmarshalAttributes(m.Data[headerSize:])
}

// kindOf is the type of an attribute without the bits that say how it is packed.
func kindOf(a netlink.Attribute) uint16 {
	return a.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
}

func find(attributes []netlink.Attribute, kind uint16) []byte {
	for _, a := range attributes {
		if kindOf(a) == kind {
			return a.Data
		}
	}
	return nil
}
