package nft

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Public names of what a node's kube-proxy, CNI plugins and overlay network keep in the packet filter.

// nodeTable tells of a table that is theirs as a whole.
func nodeTable(t Table) bool {
	switch t.Family {
	case unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6:
		return slices.Contains([]string{"kube-proxy", "unbounded_localdns", "cni_hostport", "cni_plugins_masquerade"}, t.Name)
	}
	return false
}

// sharedTable tells of a table that many programs put chains and rules into: those of iptables, and of the bridge plugin.
func sharedTable(t Table) bool {
	switch t.Family {
	case unix.NFPROTO_IPV4, unix.NFPROTO_IPV6:
		return slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, t.Name)
	case unix.NFPROTO_BRIDGE:
		return t.Name == "nat"
	}
	return false
}

func nodeChain(name string) bool {
	return slices.ContainsFunc([]string{"KUBE-", "CNI-", "UNBOUNDED-", "cni-br-iface-"},
		func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// nodeRule tells of a rule in a chain of everybody's.
func nodeRule(r rule) bool {
	if slices.ContainsFunc(r.jumps, nodeChain) {
		return true
	}
	if r.comment == "" {
		return r.clamps // the overlay's own: -o wg+ -j TCPMSS
	}
	return strings.HasPrefix(r.comment, "unbounded-net") || strings.HasPrefix(r.comment, "unbounded-localdns")
}

// rule is what a rule of a shared table is told by.
type rule struct {
	chain   string
	handle  uint64
	jumps   []string // chains that it jumps to
	comment string
	clamps  bool // the size of segments that leave through any wg link
	digest  string
}

func handleOf(attributes []netlink.Attribute) uint64 {
	if data := find(attributes, unix.NFTA_RULE_HANDLE); len(data) == 8 {
		return binary.BigEndian.Uint64(data)
	}
	return 0
}

func (t Table) rules() ([]rule, error) {
	var rules []rule
	for _, m := range t.messages {
		if o, _ := objectOf(m); o.kind != unix.NFT_MSG_NEWRULE {
			continue
		}
		r, err := readRule(m)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", describe(m), err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func readRule(m netlink.Message) (rule, error) {
	attributes, err := parse(m)
	if err != nil {
		return rule{}, err
	}
	r := rule{chain: text(find(attributes, nameAttribute)), handle: handleOf(attributes)}
	if r.handle == 0 {
		return rule{}, errors.New("has no handle")
	}
	r.comment = userComment(find(attributes, unix.NFTA_RULE_USERDATA))
	list, err := netlink.UnmarshalAttributes(find(attributes, unix.NFTA_RULE_EXPRESSIONS))
	if err != nil {
		return rule{}, err
	}
	digest := sha256.New()
	seen := seen{}
	for _, element := range list {
		parts, err := netlink.UnmarshalAttributes(element.Data)
		if err != nil {
			return rule{}, err
		}
		e := expression{name: text(find(parts, unix.NFTA_EXPR_NAME))}
		if e.data, err = netlink.UnmarshalAttributes(find(parts, unix.NFTA_EXPR_DATA)); err != nil {
			return rule{}, err
		}
		if e.name != "counter" { // differs at every look
			digest.Write(element.Data)
		}
		if err := r.read(e, &seen); err != nil {
			return rule{}, err
		}
	}
	r.digest = fmt.Sprintf("%x", digest.Sum(nil)[:6])
	return r, nil
}

// seen is what earlier expressions of a rule have said.
type seen struct {
	output bool // the last one loaded the name of the link that a packet leaves through
	wg     bool // that name begins with wg, whatever comes after it
}

// read takes from e what tells the rule.
func (r *rule) read(e expression, seen *seen) error {
	switch e.name {
	case "meta":
		seen.output = e.number(unix.NFTA_META_KEY) == unix.NFT_META_OIFNAME
	case "cmp":
		value, err := nested(e.data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
		if err != nil {
			return err
		}
		// A plus at the end is a comparison of what is before it.
		if seen.output && string(value) == "wg" && e.number(unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ {
			seen.wg = true
		}
	case "immediate":
		chain, err := nested(e.data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN)
		if err != nil {
			return err
		}
		if chain != nil {
			r.jumps = append(r.jumps, text(chain))
		}
	case "match":
		if text(find(e.data, unix.NFTA_MATCH_NAME)) == "comment" {
			r.comment = cString(find(e.data, unix.NFTA_MATCH_INFO))
		}
	case "target":
		r.clamps = seen.wg && text(find(e.data, unix.NFTA_TARGET_NAME)) == "TCPMSS"
	}
	return nil
}

// nested is the attribute at the end of path, nil if there is none.
func nested(attributes []netlink.Attribute, path ...uint16) ([]byte, error) {
	for _, kind := range path[:len(path)-1] {
		data := find(attributes, kind)
		if data == nil {
			return nil, nil
		}
		var err error
		if attributes, err = netlink.UnmarshalAttributes(data); err != nil {
			return nil, err
		}
	}
	return find(attributes, path[len(path)-1]), nil
}

// userComment is the comment in what nft and newer iptables keep beside a rule: type, length, value.
func userComment(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		if data[0] == 0 { // NFTNL_UDATA_RULE_COMMENT
			return cString(data[2 : 2+int(data[1])])
		}
		data = data[2+int(data[1]):]
	}
	return ""
}

func cString(data []byte) string {
	before, _, _ := bytes.Cut(data, []byte{0})
	return string(before)
}
