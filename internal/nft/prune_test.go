package nft

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// nobody was there before.
func nobody(Part) bool { return false }

// iptables runs the lines of script, each with iptables-nft in front, or ip6tables-nft for those that begin with
// "6". A line may fail where the kernel lacks the extension, and is then not part of the test.
func iptables(t *testing.T, script string) {
	t.Helper()
	for line := range strings.Lines(script) {
		program := "iptables-nft"
		line = strings.TrimSpace(line)
		if rest, six := strings.CutPrefix(line, "6 "); six {
			program, line = "ip6tables-nft", rest
		}
		if line == "" {
			continue
		}
		argv := words(line)
		if output, err := exec.CommandContext(t.Context(), program, argv...).CombinedOutput(); err != nil {
			t.Logf("not here: %s %s: %s", program, line, output)
		}
	}
}

// words splits at spaces outside double quotes.
func words(line string) []string {
	var all []string
	for i, part := range strings.Split(line, `"`) {
		if i%2 == 1 {
			all = append(all, part)
		} else {
			all = append(all, strings.Fields(part)...)
		}
	}
	return all
}

// node is what kube-proxy, CNI plugins and the overlay network write, in both of kube-proxy's modes.
const node = `
-t nat -N KUBE-SERVICES
-t nat -N KUBE-POSTROUTING
-t nat -N KUBE-MARK-MASQ
-t nat -N KUBE-SVC-ABC
-t nat -A KUBE-SERVICES -d 10.96.0.1 -p tcp -m comment --comment "default/kubernetes cluster IP" -m tcp --dport 443 -j KUBE-SVC-ABC
-t nat -A KUBE-SVC-ABC -j KUBE-MARK-MASQ
-t nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-t nat -I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-t nat -I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-t nat -I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-t nat -N CNI-0123456789abcdef
-t nat -A CNI-0123456789abcdef -d 10.244.0.0/24 -m comment --comment "name: \x22unbounded\x22" -j ACCEPT
-t nat -A POSTROUTING -s 10.244.0.7 -m comment --comment "name: unbounded id: 1" -j CNI-0123456789abcdef
-t nat -N UNBOUNDED-MASQUERADE
-t nat -A UNBOUNDED-MASQUERADE -s 10.244.0.0/16 -j RETURN
-t nat -A POSTROUTING -m comment --comment "unbounded-net: masquerade" -j UNBOUNDED-MASQUERADE
-t filter -N KUBE-FORWARD
-t filter -I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-t filter -A FORWARD -i wg51820 -m comment --comment "unbounded-net: accept tunnel traffic" -j ACCEPT
-t mangle -N UNBOUNDED-MSS-CLAMP
-t mangle -A FORWARD -m comment --comment "unbounded-net: clamp" -j UNBOUNDED-MSS-CLAMP
-t mangle -A FORWARD -o wg+ -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
-t mangle -N KUBE-KUBELET-CANARY
-t raw -A PREROUTING -d 169.254.20.10 -p udp --dport 53 -m comment --comment "unbounded-localdns: skip conntrack" -j NOTRACK
6 -t nat -N KUBE-SERVICES
6 -t nat -I PREROUTING -j KUBE-SERVICES
6 -t mangle -N KUBE-KUBELET-CANARY
`

const nodeTables = `
table ip kube-proxy { chain services { type nat hook prerouting priority dstnat; jump endpoints; }
	chain endpoints { }
}
table ip6 kube-proxy { chain services { }
}
table ip unbounded_localdns { chain c { type filter hook prerouting priority raw; udp dport 53 notrack; }
}
table inet cni_hostport { chain c { }
}
`

// operators has tables that look like it, and are not.
const operators = `
table inet operator { chain KUBE-LIKE { drop; }
	chain input { type filter hook input priority filter; jump KUBE-LIKE; }
}
table bridge kube-proxy { chain c { }
}
table inet nat { chain KUBE-X { }
}
table ip empty { chain c { type filter hook input priority filter; }
}
`

const operatorsRules = `
-t filter -N DOCKER-USER
-t filter -A FORWARD -j DOCKER-USER
-t filter -A FORWARD -m comment --comment "about unbounded-net" -j ACCEPT
-t filter -A INPUT -p tcp --dport 22 -j ACCEPT
-t mangle -A FORWARD -o wg0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
-t mangle -A FORWARD -o wg+ -p tcp --tcp-flags SYN,RST SYN -m comment --comment "mine" -j TCPMSS --clamp-mss-to-pmtu
-t nat -A POSTROUTING -s 192.168.0.0/16 -o eth0 -j MASQUERADE
-t nat -N KUBELIKE
6 -t filter -P FORWARD DROP
`

func prune(t *testing.T, conn *Conn, all bool, keep func(Part) bool) []Part {
	t.Helper()
	saved, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	parts, err := saved.Node(all, keep)
	if err != nil {
		t.Fatal(err)
	}
	if len(parts) > 0 {
		if err := conn.Remove(saved.Generation, parts); err != nil {
			t.Fatal(err)
		}
	}
	return parts
}

func needIptables(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("iptables-nft"); err != nil {
		t.Skip("needs iptables-nft")
	}
}

// On a host of its own nothing of the node is left.
func TestNodeAlone(t *testing.T) {
	namespace(t)
	needIptables(t)
	conn := dial(t)
	iptables(t, node)
	program(t, nodeTables, "nft", "-f", "-")
	prune(t, conn, false, nobody)
	if left, _ := ruleset(t); left != "" {
		t.Errorf("left:\n%s", left)
	}
	if parts := prune(t, conn, true, nobody); len(parts) > 0 {
		t.Errorf("the second time there are %v", parts)
	}
}

// Among an operator's rules, before and after his, the node's go and his are as they were.
func TestNodeAmongOthers(t *testing.T) {
	for _, order := range []string{"operator first", "node first"} {
		t.Run(order, func(t *testing.T) {
			namespace(t)
			needIptables(t)
			conn := dial(t)
			program(t, operators, "nft", "-f", "-")
			iptables(t, operatorsRules)
			want := rules(program(t, "", "iptables-nft-save") + program(t, "", "ip6tables-nft-save"))
			wantPlain, _ := ruleset(t)
			if order == "node first" {
				program(t, "flush ruleset", "nft", "-f", "-")
				iptables(t, node)
				program(t, operators, "nft", "-f", "-")
				iptables(t, operatorsRules)
			} else {
				iptables(t, node)
			}
			program(t, nodeTables, "nft", "-f", "-")
			prune(t, conn, false, nobody)
			gotPlain, _ := ruleset(t)
			for line := range strings.Lines(gotPlain) {
				if strings.Contains(line, "UNBOUNDED-") || strings.Contains(line, "CNI-") || strings.Contains(line, "unbounded_localdns") {
					t.Errorf("left: %s", line)
				}
			}
			if order == "operator first" {
				if diff := cmp.Diff(chains(wantPlain), chains(gotPlain)); diff != "" {
					t.Errorf("ruleset (-want +got):\n%s", diff)
				}
				got := rules(program(t, "", "iptables-nft-save") + program(t, "", "ip6tables-nft-save"))
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("rules (-want +got):\n%s", diff)
				}
			}
			for _, needed := range []string{"table inet operator", "KUBE-LIKE", "table bridge kube-proxy", "table inet nat", "table ip empty", "DOCKER-USER", "KUBELIKE", "policy drop"} {
				if !strings.Contains(gotPlain, needed) {
					t.Errorf("%s is gone:\n%s", needed, gotPlain)
				}
			}
			if !strings.Contains(program(t, "", "iptables-nft-save"), "about unbounded-net") {
				t.Error("the rule about unbounded-net is gone")
			}
			if parts := prune(t, conn, false, nobody); len(parts) > 0 {
				t.Errorf("the second time there are %v", parts)
			}
		})
	}
}

// chains are the lines of a ruleset but for what counts, and for the base chains that iptables makes and leaves
// empty in a table that somebody else uses.
func chains(plain string) []string {
	var kept []string
	for line := range strings.Lines(plain) {
		words := strings.Fields(line)
		if at := slices.Index(words, "counter"); at >= 0 && len(words) >= at+5 {
			words = slices.Delete(words, at, at+5)
		}
		kept = append(kept, strings.Join(words, " "))
	}
	text := strings.Join(kept, "\n")
	for _, chain := range []string{
		"chain PREROUTING {\ntype nat hook prerouting priority dstnat; policy accept;\n}\n",
		"chain OUTPUT {\ntype nat hook output priority -100; policy accept;\n}\n",
		"chain OUTPUT {\ntype nat hook output priority dstnat; policy accept;\n}\n",
		"\n",
	} {
		text = strings.ReplaceAll(text, chain, " ")
	}
	return strings.Fields(text)
}

// What the host had before stays, by name: a chain with its rules, the rule that jumps there, a table.
func TestNodeKeepsWhatWasThere(t *testing.T) {
	namespace(t)
	needIptables(t)
	conn := dial(t)
	program(t, "table ip kube-proxy { chain c { }\n}", "nft", "-f", "-")
	iptables(t, `
-t nat -N KUBE-OLD
-t nat -A KUBE-OLD -s 10.0.0.0/8 -j ACCEPT
-t nat -A PREROUTING -j KUBE-OLD
6 -t raw -P OUTPUT ACCEPT
`)
	before, _ := ruleset(t)
	saved, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	known, err := saved.Names()
	if err != nil {
		t.Fatal(err)
	}
	// In another boot: handles are others, counters have counted.
	program(t, "flush ruleset", "nft", "-f", "-")
	iptables(t, node)
	program(t, "table ip kube-proxy { chain c { }\n}", "nft", "-f", "-")
	iptables(t, `
-t nat -N KUBE-OLD
-t nat -A KUBE-OLD -s 10.0.0.0/8 -j ACCEPT -c 5 500
-t nat -A PREROUTING -j KUBE-OLD
6 -t raw -P OUTPUT ACCEPT
`)
	prune(t, conn, true, func(p Part) bool { return slices.Contains(known, p.String()) })
	after, _ := ruleset(t)
	for _, needed := range []string{"table ip kube-proxy", "chain KUBE-OLD", "jump KUBE-OLD", "10.0.0.0/8", "table ip6 raw"} {
		if strings.Contains(before, needed) && !strings.Contains(after, needed) {
			t.Errorf("%s is gone:\n%s", needed, after)
		}
	}
	for _, ours := range []string{"KUBE-SERVICES", "CNI-", "UNBOUNDED-", "table ip filter", "table ip mangle"} {
		if strings.Contains(after, ours) {
			t.Errorf("%s is left:\n%s", ours, after)
		}
	}
}

func TestRemoveRefusesAChangedRuleset(t *testing.T) {
	namespace(t)
	conn := dial(t)
	program(t, "table ip kube-proxy { }", "nft", "-f", "-")
	saved, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	parts, err := saved.Node(false, nobody)
	if err != nil {
		t.Fatal(err)
	}
	program(t, "table ip other { }", "nft", "-f", "-")
	if err := conn.Remove(saved.Generation, parts); !errors.Is(err, ErrChanged) {
		t.Errorf("Remove = %v, want ErrChanged", err)
	}
	if left, _ := ruleset(t); !strings.Contains(left, "kube-proxy") {
		t.Errorf("the refused removal left:\n%s", left)
	}
}

// A map of the operator's that leads to a chain of the node keeps all as it is, and the chain is named.
func TestRemoveRefused(t *testing.T) {
	namespace(t)
	conn := dial(t)
	program(t, `table ip nat {
	map m { type inet_service : verdict; elements = { 80 : jump KUBE-X } }
	chain KUBE-X { }
	chain KUBE-Y { }
}`, "nft", "-f", "-")
	saved, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	parts, err := saved.Node(false, nobody)
	if err != nil {
		t.Fatal(err)
	}
	err = conn.Remove(saved.Generation, parts)
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "table ip nat: chain KUBE-X") {
		t.Errorf("Remove = %v, want EBUSY that names chain KUBE-X", err)
	}
	if left, _ := ruleset(t); !strings.Contains(left, "chain KUBE-Y") {
		t.Errorf("the refused removal left:\n%s", left)
	}
}

// A table without what is a node's in it can be saved, and comes back as the operator's.
func TestForeign(t *testing.T) {
	namespace(t)
	needIptables(t)
	conn := dial(t)
	iptables(t, operatorsRules)
	want := rules(program(t, "", "iptables-nft-save"))
	iptables(t, node)
	program(t, nodeTables, "nft", "-f", "-")
	saved, err := conn.Save()
	if err != nil {
		t.Fatal(err)
	}
	var kept []Table
	for _, table := range saved.Tables {
		rest, some, err := table.Foreign()
		if err != nil {
			t.Fatal(err)
		}
		if some {
			kept = append(kept, rest)
		}
	}
	for _, table := range kept {
		if table.Name == "kube-proxy" || table.Name == "cni_hostport" || table.Family == unix.NFPROTO_IPV6 && table.Name != "filter" || table.Name == "raw" {
			t.Errorf("kept %s", table)
		}
	}
	if err := conn.Flush(saved.Generation); err != nil {
		t.Fatal(err)
	}
	if err := conn.Restore(onDisk(t, kept)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, withoutEmpty(want, rules(program(t, "", "iptables-nft-save")))); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

// withoutEmpty drops the base chains that only the node's iptables had made.
func withoutEmpty(want, got []string) []string {
	return slices.DeleteFunc(got, func(line string) bool {
		return strings.HasPrefix(line, ":") && !slices.Contains(want, line)
	})
}
