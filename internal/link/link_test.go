package link

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// namespace moves the test into a network namespace of its own, and skips where that, or ip, is not to be had.
func namespace(t *testing.T) *Conn {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs the ip program")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and the namespace with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("unshare: %v", err)
	}
	conn, err := Dial(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ip runs the lines of script, each with ip in front. A line that begins with "?" may fail: kernels differ.
func ip(t *testing.T, script string) {
	t.Helper()
	for line := range strings.Lines(script) {
		line, optional := strings.CutPrefix(strings.TrimSpace(line), "?")
		argv := strings.Fields(line)
		if len(argv) == 0 {
			continue
		}
		output, err := exec.CommandContext(t.Context(), "ip", argv...).CombinedOutput()
		switch {
		case err != nil && optional:
			t.Logf("this kernel has no %s: %s", line, output)
		case err != nil:
			t.Fatalf("ip %s: %v: %s", line, err, output)
		}
	}
}

func show(t *testing.T, args ...string) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput()
	if err != nil && len(output) > 0 && !strings.Contains(string(output), "does not exist") {
		t.Fatalf("ip %v: %v: %s", args, err, output)
	}
	return string(output)
}

func TestLinks(t *testing.T) {
	conn := namespace(t)
	ip(t, `
		link add br0 type bridge
		link add v0 type veth peer name w0
		link set v0 master br0
		link add x0 type vxlan id 1 dstport 4789`)
	links, err := conn.Links()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	masters := map[string]string{}
	for _, l := range links {
		kinds[l.Name] = l.Kind
		for _, other := range links {
			if other.Index == l.Master {
				masters[l.Name] = other.Name
			}
		}
	}
	want := map[string]string{"lo": "", "br0": "bridge", "v0": "veth", "w0": "veth", "x0": "vxlan"}
	for name, kind := range want {
		if got, ok := kinds[name]; !ok || got != kind {
			t.Errorf("kind of %s is %q, %v, want %q", name, got, ok, kind)
		}
	}
	if diff := cmp.Diff(map[string]string{"v0": "br0"}, masters); diff != "" {
		t.Errorf("masters (-want +got):\n%s", diff)
	}
	at := slices.IndexFunc(links, func(l Link) bool { return l.Name == "v0" })
	for i, want := range []bool{true, false} {
		removed, err := conn.RemoveLink(links[at])
		if err != nil || removed != want {
			t.Errorf("removal %d of v = %v, %v, want %v", i+1, removed, err, want)
		}
	}
	lo := slices.IndexFunc(links, func(l Link) bool { return l.Name == "lo" })
	if _, err := conn.RemoveLink(links[lo]); err == nil {
		t.Error("lo was removed")
	}
}

// Routes and rules of every sort are removed from their table, exactly, and a twin in another table is not.
func TestRoutesAndRules(t *testing.T) {
	conn := namespace(t)
	ip(t, `
		link set lo up
		link add v0 type veth peer name w0
		link set v0 up
		link set w0 up
		addr add 192.0.2.1/24 dev v0
		-6 addr add 2001:db8::1/64 dev v0 nodad
		?nexthop add id 7 via 192.0.2.9 dev v0`)
	sorts := []string{
		"10.0.0.0/8 via 192.0.2.2", "10.0.0.0/8 via 192.0.2.2 metric 5", "default dev v0", "blackhole 10.1.0.0/16",
		"unreachable 10.2.0.0/16", "prohibit 10.3.0.0/16", "throw 10.4.0.0/16", "10.5.0.0/16 dev v0 src 192.0.2.1 mtu 1400",
		"10.6.0.0/16 nexthop via 192.0.2.2 nexthop via 192.0.2.3 weight 2", "?10.7.0.0/16 nhid 7", "10.8.0.0/16 tos 0x10 dev v0",
		"10.9.0.0/16 via inet6 fe80::1 dev v0", "10.10.0.0/16 dev v0 proto 99 scope host", "?10.11.0.0/16 encap ip id 3 dst 10.0.0.1 dev v0",
		"-6 2001:db8:1::/48 via 2001:db8::2", "-6 default dev v0 metric 9", "-6 blackhole 2001:db8:2::/48", "-6 unreachable 2001:db8:3::/48",
		"-6 2001:db8:4::/48 nexthop via 2001:db8::2 nexthop via 2001:db8::3", "-6 2001:db8:5::/48 via 2001:db8::2 pref high",
		"-6 prohibit 2001:db8:6::/48",
	}
	for _, table := range []string{"252", "51820", "777"} {
		for _, sort := range sorts {
			optional := ""
			if rest, ok := strings.CutPrefix(sort, "?"); ok {
				optional, sort = "?", rest
			}
			rest, six := strings.CutPrefix(sort, "-6 ")
			family := "-4"
			if six {
				family = "-6"
			}
			ip(t, optional+family+" route append table "+table+" "+rest)
		}
	}
	ip(t, `
		rule add pref 100 fwmark 0x1/0xff table 51820
		rule add pref 101 from 10.0.0.0/8 to 10.1.0.0/16 tos 0x10 iif v0 table 51820
		rule add pref 102 not from 10.0.0.0/8 table 51820
		rule add pref 103 table 51820 suppress_prefixlength 0
		rule add pref 104 uidrange 5-9 ipproto tcp sport 7 dport 8-9 table 51820
		rule add pref 105 oif gone table 51820
		rule add pref 106 from 10.0.0.0/8 unreachable
		rule add pref 107 from 10.0.0.0/8 table 777
		rule add pref 108 from 10.0.0.0/8 goto 32766
		?rule add pref 109 l3mdev
		rule add pref 32765 table 252
		-6 rule add pref 100 from 2001:db8::/32 table 51820
		-6 rule add pref 101 prohibit
		-6 rule add pref 32765 table 252`)
	kept := show(t, "route", "show", "table", "777") + show(t, "-6", "route", "show", "table", "777")
	local := show(t, "route", "show", "table", "local") + show(t, "route", "show", "table", "main") + show(t, "-6", "route", "show", "table", "main")

	links, err := conn.Links()
	if err != nil {
		t.Fatal(err)
	}
	routes, err := conn.Routes(links)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range routes {
		if r.Table != 252 && r.Table != 51820 {
			continue
		}
		if seen[r.String()] {
			t.Errorf("two routes are called %s", r)
		}
		seen[r.String()] = true
		if removed, err := conn.RemoveRoute(r); err != nil || !removed {
			t.Errorf("remove %s = %v, %v", r, removed, err)
		}
	}
	for _, r := range routes {
		if !seen[r.String()] {
			continue
		}
		if removed, err := conn.RemoveRoute(r); err != nil || removed {
			t.Errorf("remove %s again = %v, %v", r, removed, err)
		}
	}
	for _, table := range []string{"252", "51820"} {
		if left := show(t, "route", "show", "table", table) + show(t, "-6", "route", "show", "table", table); left != "" && !strings.Contains(left, "does not exist") {
			t.Errorf("left in table %s:\n%s", table, left)
		}
	}
	if got := show(t, "route", "show", "table", "777") + show(t, "-6", "route", "show", "table", "777"); got != kept {
		t.Errorf("table 777 (-want +got):\n%s", cmp.Diff(kept, got))
	}
	if got := show(t, "route", "show", "table", "local") + show(t, "route", "show", "table", "main") + show(t, "-6", "route", "show", "table", "main"); got != local {
		t.Errorf("tables local and main (-want +got):\n%s", cmp.Diff(local, got))
	}

	rules, err := conn.Rules()
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rules {
		if r.Table == 0 && r.Priority != 106 && r.Priority != 108 && r.Priority != 109 && r.Priority != 101 {
			t.Errorf("%s has no table", r)
		}
		if slices.ContainsFunc(rules[i+1:], func(other Rule) bool { return other.String() == r.String() }) {
			t.Errorf("two rules are called %s", r)
		}
		if r.Table == 252 || r.Table == 51820 || r.Priority == 106 || r.Priority == 109 {
			if removed, err := conn.RemoveRule(r); err != nil || !removed {
				t.Errorf("remove %s = %v, %v", r, removed, err)
			}
			if removed, err := conn.RemoveRule(r); err != nil || removed {
				t.Errorf("remove %s again = %v, %v", r, removed, err)
			}
		}
	}
	var left []uint32
	after, err := conn.Rules()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range after {
		left = append(left, r.Priority)
	}
	if diff := cmp.Diff([]uint32{0, 107, 108, 32766, 32767, 0, 101, 32766}, left); diff != "" {
		t.Errorf("priorities of the rules left (-want +got):\n%s", diff)
	}
}

// An inventory of which a part cannot be read is an error.
func TestReadRefuses(t *testing.T) {
	good := netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWROUTE}, Data: make([]byte, headerSize)}
	good.Data[0] = unix.AF_INET
	other := good
	other.Data = slices.Clone(good.Data)
	other.Data[0] = unix.AF_INET6
	for _, test := range []struct {
		name     string
		last     netlink.Message
		messages int
		whole    bool
		fail     bool
	}{
		{name: "fine", last: good, messages: 2, whole: true},
		{name: "another family", last: other, messages: 1, whole: true},
		{name: "interrupted", last: netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWROUTE, Flags: netlink.DumpInterrupted}, Data: good.Data}},
		{name: "another type", last: netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWRULE}, Data: good.Data}, fail: true},
		{name: "short", last: netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWROUTE}, Data: good.Data[:5]}, fail: true},
		{name: "cut attribute", last: netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWROUTE}, Data: append(slices.Clone(good.Data), 50, 0, 1, 0)}, fail: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			messages, whole, err := read([]netlink.Message{good, test.last}, unix.RTM_NEWROUTE, unix.AF_INET, headerSize)
			if len(messages) != test.messages || whole != test.whole || (err != nil) != test.fail {
				t.Errorf("read = %d messages, %v, %v", len(messages), whole, err)
			}
		})
	}
}

func TestNotPermitted(t *testing.T) {
	conn := namespace(t)
	ip(t, "link add br0 type bridge")
	links, err := conn.Links()
	if err != nil {
		t.Fatal(err)
	}
	// The capabilities of this thread only, which ends with the test.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var capabilities [2]unix.CapUserData
	if err := unix.Capset(&header, &capabilities[0]); err != nil {
		t.Fatal(err)
	}
	poor, err := Dial(0)
	if err != nil {
		t.Fatal(err)
	}
	defer poor.Close()
	at := slices.IndexFunc(links, func(l Link) bool { return l.Name == "br0" })
	if _, err := poor.RemoveLink(links[at]); !errors.Is(err, ErrNotPermitted) {
		t.Errorf("RemoveLink = %v, want ErrNotPermitted", err)
	}
}
