package nft

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// namespace moves the test into a network namespace of its own, and skips where that, or nft, is not to be had.
func namespace(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs the nft program")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and the namespace with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("unshare: %v", err)
	}
}

func dial(t *testing.T) *Conn {
	t.Helper()
	conn, err := Dial(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func program(t *testing.T, input string, argv ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	command.Stdin = strings.NewReader(input)
	var stderr strings.Builder
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v: %.500s", argv, err, stderr.String())
	}
	return string(output)
}

// ruleset is what nft says there is, as text and as JSON, but for running timeouts and handles.
func ruleset(t *testing.T) (plain, structured string) {
	t.Helper()
	return program(t, "", "nft", "list", "ruleset"), withoutHandles(program(t, "", "nft", "-j", "list", "ruleset"))
}

func withoutHandles(s string) string {
	parts := strings.Split(s, `"handle": `)
	for i := 1; i < len(parts); i++ {
		parts[i] = strings.TrimLeft(parts[i], "0123456789")
	}
	return strings.Join(parts, `"handle": `)
}

// zoo has one of every animal that can be had without modules.
const zoo = `
table inet filter {
	comment "kept"
	set addresses { type ipv4_addr; flags interval; auto-merge; elements = { 10.0.0.0/8, 192.0.2.1-192.0.2.9 }
	}
	set sized { type ipv6_addr; size 100; policy memory; elements = { 2001:db8::1 comment "one" }
	}
	set counted { type inet_service; counter; elements = { 22 counter packets 5 bytes 300, 80 counter packets 0 bytes 0 }
	}
	set pairs { type ipv4_addr . inet_proto . inet_service; flags interval; elements = { 10.0.0.0/24 . tcp . 80-90 }
	}
	set seen { type ipv4_addr; size 1000; flags dynamic,timeout; timeout 1h; gc-interval 10m
	}
	set names { type ifname; flags interval; elements = { "eth*", "lo" }
	}
	set kinds { typeof ip daddr . tcp dport; elements = { 1.1.1.1 . 53 }
	}
	map verdicts { type inet_service : verdict; elements = { 22 : jump ssh, 80 : accept, 81 : goto web }
	}
	map nat4 { type ipv4_addr : ipv4_addr; elements = { 1.2.3.4 : 5.6.7.8 }
	}
	map marks { type ifname : mark; elements = { "lo" : 0x00000007 }
	}
	counter hits {
		comment "hits"
		packets 7 bytes 700
	}
	quota daily {
		over 10 mbytes used 1 mbytes
	}
	limit slow {
		rate over 10/second burst 20 packets
	}
	ct helper ftp {
		type "ftp" protocol tcp
		l3proto inet
	}
	ct timeout short {
		protocol tcp
		l3proto ip
		policy = { established: 100, close: 4 }
	}
	map counters {
		type inet_service : counter
		elements = { 21 : "hits" }
	}
	chain ssh {
		ip saddr @addresses accept
		return
	}
	chain web {
		counter packets 3 bytes 180 log prefix "web " level info flags all
		drop
	}
	chain input {
		comment "entry"
		type filter hook input priority filter - 5; policy drop;
		ct state vmap { established : accept, related : accept, invalid : drop }
		iifname "lo" accept comment "loop"
		tcp dport vmap @verdicts
		tcp dport { 8000-8100, 9000 } counter name "hits" quota name "daily"
		limit name "slow" drop
		tcp dport 21 ct helper set "ftp"
		ip protocol tcp ct timeout set "short"
		meta l4proto { 1, 58 } limit rate 5/second burst 5 packets accept
		meta mark set iifname map @marks
		counter name tcp dport map @counters
		ip saddr . ip protocol . th dport @pairs accept
		update @seen { ip saddr timeout 5m limit rate 10/minute }
		ct original ip daddr 10.1.1.1 accept
		ct mark set meta mark and 0xff or 0x1
		meta hour "08:00"-"16:00" accept
		meta time >= "2030-01-01 00:00:00" drop
		socket transparent 1 mark set 0x00000001
		fib saddr . iif oif missing drop
		tcp flags & (fin|syn|rst|ack) == syn reject with tcp reset
		ip6 saddr fe80::/10 icmpv6 type { nd-neighbor-solicit, nd-router-advert } accept
		jhash ip saddr mod 7 seed 0xdeadbeef 1 accept
		jump { ip saddr 10.9.9.9 accept; udp dport 7 drop; }
		reject with icmpx admin-prohibited
	}
	chain forward {
		type filter hook forward priority mangle;
		tcp flags syn tcp option maxseg size set rt mtu
		tcp option timestamp exists counter
		numgen random mod 10 < 3 drop
		ct count over 20 drop
		exthdr frag exists drop
	}
	chain proxy {
		type filter hook input priority 10;
		tcp dport 8443 ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm
	}
}
table ip nat {
	chain post {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr 10.0.0.0/8 masquerade random
		oifname "eth0" ip protocol tcp snat to 192.0.2.1-192.0.2.4:1024-2048 persistent
	}
	chain pre {
		type nat hook prerouting priority dstnat;
		tcp dport 80 dnat to 10.0.0.1:8080
		dnat to numgen inc mod 2 map { 0 : 10.0.0.2, 1 : 10.0.0.3 }
		udp dport 53 redirect to :5353
	}
}
table ip6 raw {
	chain pre {
		type filter hook prerouting priority raw;
		udp dport 53 notrack
	}
}
table arp filter {
	chain in {
		type filter hook input priority filter;
		arp operation request counter packets 1 bytes 28
	}
}
table bridge filter {
	chain pass {
		type filter hook forward priority filter;
		ether type vlan vlan id 7 drop
	}
}
table netdev edge {
	chain in {
		type filter hook ingress device "lo" priority -500; policy accept;
		ip saddr 198.51.100.0/24 drop
	}
}
table ip asleep {
	flags dormant
	chain c {
		type filter hook output priority filter;
		drop
	}
}
table inet empty {
}
`

// flowtables is apart because small kernels have none.
const flowtables = `
table inet flows {
	flowtable fast {
		hook ingress priority filter; devices = { lo };
		counter
	}
	chain forward {
		type filter hook forward priority filter;
		meta l4proto tcp flow add @fast
	}
}
`

func TestSaveFlushRestore(t *testing.T) {
	namespace(t)
	conn := dial(t)
	program(t, zoo, "nft", "-f", "-")
	command := exec.CommandContext(t.Context(), "nft", "-f", "-")
	command.Stdin = strings.NewReader(flowtables)
	if output, err := command.CombinedOutput(); err != nil {
		t.Logf("this kernel has no flowtables: %s", output)
	}
	plain, structured := ruleset(t)

	saved, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(saved.Generation); err != nil {
		t.Fatal(err)
	}
	if left, _ := ruleset(t); left != "" {
		t.Fatalf("after the flush there is:\n%s", left)
	}
	if err := conn.Restore(onDisk(t, saved.Tables)); err != nil {
		t.Fatal(err)
	}
	gotPlain, gotStructured := ruleset(t)
	if diff := cmp.Diff(plain, gotPlain); diff != "" {
		t.Errorf("text (-before +after):\n%s", diff)
	}
	if structured != gotStructured {
		t.Errorf("JSON differs:\n%s", cmp.Diff(strings.Split(structured, "}, {"), strings.Split(gotStructured, "}, {")))
	}
	again, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Restore(again.Tables[:1]); !errors.Is(err, unix.EEXIST) {
		t.Errorf("restore over a table of that name: %v, want EEXIST", err)
	}
}

// onDisk takes tables through the form in which they are kept.
func onDisk(t *testing.T, tables []Table) []Table {
	t.Helper()
	read := make([]Table, len(tables))
	for i, table := range tables {
		data, err := table.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		if err := read[i].UnmarshalBinary(data); err != nil {
			t.Fatal(err)
		}
		if read[i].String() != table.String() {
			t.Errorf("table %s came back as %s", table, read[i])
		}
	}
	return read
}

// Rules of iptables-nft with xt matches have no text form that nft reads.
func TestRestoreIptables(t *testing.T) {
	namespace(t)
	if _, err := exec.LookPath("iptables-nft"); err != nil {
		t.Skip("needs iptables-nft")
	}
	for _, rule := range []string{
		"-A INPUT -p tcp -m multiport --dports 80,443 -m comment --comment kept -j ACCEPT",
		"-A INPUT ! -p udp -m conntrack --ctstate NEW -m recent --set --name seen",
		"-A INPUT -p udp -m udp --sport 53 -m set --match-set absent src -j DROP",
		"-A INPUT -m statistic --mode random --probability 0.5 -j DROP",
		"-P INPUT DROP",
		"-t nat -A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE --random-fully",
		"-t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu",
	} {
		argv := append([]string{"iptables-nft"}, strings.Fields(rule)...)
		if output, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Logf("the kernel has no %s: %s", rule, output)
		}
	}
	before := program(t, "", "iptables-nft-save")
	conn := dial(t)
	saved, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(saved.Generation); err != nil {
		t.Fatal(err)
	}
	if err := conn.Restore(onDisk(t, saved.Tables)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rules(before), rules(program(t, "", "iptables-nft-save"))); diff != "" {
		t.Errorf("iptables-nft-save (-before +after):\n%s", diff)
	}
}

// rules is s without its comment lines, which carry the time.
func rules(s string) []string {
	return slices.DeleteFunc(strings.Split(s, "\n"), func(line string) bool { return strings.HasPrefix(line, "#") })
}

func TestFlushRefusesAChangedRuleset(t *testing.T) {
	namespace(t)
	conn := dial(t)
	program(t, "table ip a { }", "nft", "-f", "-")
	saved, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	program(t, "table ip b { }", "nft", "-f", "-")
	if err := conn.Flush(saved.Generation); !errors.Is(err, ErrChanged) {
		t.Errorf("Flush = %v, want ErrChanged", err)
	}
	if left, _ := ruleset(t); !strings.Contains(left, "table ip a") || !strings.Contains(left, "table ip b") {
		t.Errorf("the refused flush left:\n%s", left)
	}
}

// A restore that the kernel refuses names the object and changes nothing.
func TestRestoreRefused(t *testing.T) {
	namespace(t)
	conn := dial(t)
	program(t, "table ip a {\nchain c { accept; }\n}\ntable ip b {\nchain d { drop; }\n}", "nft", "-f", "-")
	saved, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(saved.Generation); err != nil {
		t.Fatal(err)
	}
	b := &saved.Tables[1]
	b.messages = slices.DeleteFunc(b.messages, func(m netlink.Message) bool {
		o, _ := objectOf(m)
		return o.name == "chain"
	})
	err = conn.Restore(saved.Tables)
	if !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "table ip b: rule of chain d") {
		t.Errorf("Restore = %v, want ENOENT that names the rule of chain d", err)
	}
	if left, _ := ruleset(t); left != "" {
		t.Errorf("the refused restore left:\n%s", left)
	}
}

func TestManyElements(t *testing.T) {
	namespace(t)
	conn := dial(t)
	var input strings.Builder
	input.WriteString("table ip big {\nset s { type ipv4_addr; }\n}\n")
	for i := range 64 {
		addresses := make([]string, 1000)
		for j := range addresses {
			addresses[j] = fmt.Sprintf("10.%d.%d.%d", i, j/250, j%250)
		}
		fmt.Fprintf(&input, "add element ip big s { %s }\n", strings.Join(addresses, ", "))
	}
	program(t, input.String(), "nft", "-f", "-")
	saved, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(saved.Generation); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := conn.Restore(onDisk(t, saved.Tables)); err != nil {
		t.Fatal(err)
	}
	t.Logf("restored 64000 elements in %v", time.Since(began))
	// Right after the restore the kernel still moves elements about.
	again, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for _, m := range again.Tables[0].messages {
		if o, _ := objectOf(m); o.kind == unix.NFT_MSG_NEWSETELEM {
			attributes, err := parse(m)
			if err != nil {
				t.Fatal(err)
			}
			list, err := netlink.UnmarshalAttributes(find(attributes, unix.NFTA_SET_ELEM_LIST_ELEMENTS))
			if err != nil {
				t.Fatal(err)
			}
			got += len(list)
		}
	}
	if got != 64000 {
		t.Errorf("%d elements came back, want 64000", got)
	}
}

// A table whose owner lives survives a flush, and is told by Owner.
func TestOwnedTable(t *testing.T) {
	namespace(t)
	conn := dial(t)
	other := dial(t)
	data, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: tableAttribute, Data: []byte("held\x00")}, {Type: 2, Data: []byte{0, 0, 0, 2}}, // NFT_TABLE_F_OWNER
	})
	if err != nil {
		t.Fatal(err)
	}
	held := request(unix.NFT_MSG_NEWTABLE, unix.NFPROTO_INET, netlink.Create, data)
	if err := other.transaction(0, []netlink.Message{held}); err != nil {
		t.Fatal(err)
	}
	program(t, "table ip a { }", "nft", "-f", "-")
	saved, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(saved.Generation); err != nil {
		t.Fatal(err)
	}
	left, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	if len(left.Tables) != 1 || left.Tables[0].String() != "inet held" || left.Tables[0].Owner == 0 {
		t.Errorf("after the flush there is %+v, want inet held with an owner", left.Tables)
	}
}

func TestDialWithoutPermission(t *testing.T) {
	namespace(t)
	// The capabilities of this thread only, which ends with the test.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var capabilities [2]unix.CapUserData
	if err := unix.Capset(&header, &capabilities[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(0); !errors.Is(err, ErrNotPermitted) {
		t.Errorf("Dial = %v, want ErrNotPermitted", err)
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	for _, test := range []struct {
		name string
		data []byte
	}{
		{"garbage", []byte("garbage")},
		{"cut", []byte{100, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}},
		{"a rule first", []byte{20, 0, 0, 0, 6, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var table Table
			if err := table.UnmarshalBinary(test.data); err == nil {
				t.Errorf("read %v", table)
			}
		})
	}
}
