//go:build host

// Package network tests that the node's network is told from the host's, by the real units of the stage and of reset.
// The stages before it are stubbed but for admission and the packet filter's, and what a node makes is made by hand.
package network

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

const (
	start = "systemctl start " + paths.NetworkUnit
	// mark is what the beginning of a whole reset does: that of one stage does not.
	mark    = `sed -i 's/"phase": "[a-z]*"/"phase": "resetting"/' ` + paths.Record
	reset   = mark + " && systemctl start " + paths.ResetNetworkUnit
	program = paths.DefaultRoot + "/current/unbounded-network"
	image   = paths.Before + "/network.json"
)

// operators is what the host has: things that look like a node's, and at the end some with its very names.
const operators = `set -e
ip link add wg0 type bridge
ip link add br0 type bridge
ip link add vethdeadbeef type veth peer name pod0
ip link set vethdeadbeef master br0
ip link add wg51820 type veth peer name other
ip route add 198.51.100.0/24 via 192.168.77.1 table 777
ip route add blackhole 198.51.100.0/24 table 51819
ip rule add pref 32764 from 198.51.100.0/24 table 777
ip -6 rule add pref 50 unreachable from 2001:db8:bad::/48
ip link add vxlan0 type vxlan id 1 dstport 4789
ip route add blackhole 203.0.113.0/24 table 252
ip rule add pref 100 fwmark 0x51 table 51820
mkdir -m 0700 /etc/wireguard
echo secret >/etc/wireguard/server.priv
`

// nodes is what a node makes.
const nodes = `set -e
ip link add cbr0 type bridge
ip link add veth01234567 type veth peer name pod1
ip link set veth01234567 master cbr0
ip addr add 10.244.0.1/24 dev cbr0
ip link set cbr0 addrgenmode none up
ip route add 10.245.0.0/16 via 192.168.77.1 table 252
ip route add unreachable 10.244.0.0/16 table 252
ip -6 route add blackhole 2001:db8:5::/48 table 252
ip route add default dev cbr0 table 51821
ip rule add pref 32765 table 252
ip -6 rule add pref 32765 table 252
ip rule add pref 101 fwmark 0x1 table 51821
nft -f - <<EOF
table ip kube-proxy {
	chain services { type nat hook prerouting priority dstnat; }
}
table ip unbounded_localdns { }
table ip nat {
	chain KUBE-SERVICES { counter; }
	chain PREROUTING { type nat hook prerouting priority dstnat; jump KUBE-SERVICES; }
}
table ip6 filter {
	chain UNBOUNDED-X { }
	chain FORWARD { type filter hook forward priority filter; jump UNBOUNDED-X; tcp dport 7 accept comment "unbounded-net: x"; }
}
EOF
echo ours >/etc/wireguard/server.pub
`

// have is all that there is in the network.
const have = `for command in "ip -br link" "ip -4 rule" "ip -6 rule" "ip -4 route show table all" "ip -6 route show table all" "nft list ruleset"; do echo "== $command"; $command; done |
	grep -v 'fe80:\|ff00::' | sed 's/ *$//; s/ \(UP\|DOWN\|UNKNOWN\|LOWERLAYERDOWN\) .*//'; ls -la /etc/wireguard | sed 1,3d; cat /etc/wireguard/*`

// releases runs test on both Debians, side by side.
func releases(t *testing.T, test func(t *testing.T, release string)) {
	t.Helper()
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			test(t, release)
		})
	}
}

func configuration(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	data, err := json.Marshal(map[string]any{
		"MachineName": "m1",
		"Cluster": map[string]any{
			"Version": "v1.37.2", "ClusterDNS": "10.96.0.10", "CaCertBase64": base64.StdEncoding.EncodeToString(ca),
		},
		"Kubelet": map[string]any{
			"ApiServer": "https://api.test:6443", "Auth": map[string]any{"BootstrapToken": "abcdef.0123456789abcdef"},
		},
		"OCIImage": "registry.test/node:1",
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func boot(t *testing.T, release string) *host.Host {
	t.Helper()
	stub := host.File{Content: "[Service]\nExecStart=\nExecStart=/bin/true\n"}
	return host.Boot(t, host.Options{Release: release, Overlay: map[string]host.File{
		paths.Config: {Content: configuration(t), Mode: 0o600},
		// Neither an API server nor the swap of this kernel are wanted.
		paths.SystemdDir + "/" + paths.PreflightUnit + ".d/stub.conf":     stub,
		paths.SystemdDir + "/" + paths.PrerequisitesUnit + ".d/stub.conf": stub,
		paths.SystemdDir + "/" + paths.ConflictsUnit + ".d/stub.conf":     stub,
	}})
}

func must(t *testing.T, h *host.Host, line string) {
	t.Helper()
	if got := h.Run(t, line); got.Code != 0 {
		t.Fatalf("%s = %d\n%s\n%s", line, got.Code, got.Err, h.Run(t, "journalctl -b -o cat -u 'unbounded-*' | tail -n 40").Out)
	}
}

func same(t *testing.T, when, want, got string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// The host's network after a reset is what it was before the first start, whatever was in it, also when reset is killed
// again and again; and a second reset changes nothing.
func TestStartAndReset(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		h := boot(t, release)
		must(t, h, operators)
		before := h.MustRun(t, have)
		must(t, h, start)
		same(t, "the host after the start", before, h.MustRun(t, have))
		files := host.TreeOptions{Paths: []string{"/etc", "/var/lib/unbounded"}}
		noted := h.Tree(t, files)
		must(t, h, "mkdir -p "+paths.Tree("kube1")+"/etc") // as after an attempt that was cut off later
		must(t, h, nodes)
		must(t, h, start)
		if diff := cmp.Diff(noted, h.Tree(t, files), cmp.FilterPath(func(p cmp.Path) bool {
			return strings.Contains(p.GoString(), "/etc/wireguard")
		}, cmp.Ignore())); diff != "" {
			t.Errorf("the second start wrote (-first +second):\n%s", diff)
		}
		if strings.Contains(h.ReadFile(t, image), "cbr0") {
			t.Error("the second start noted the node's bridge")
		}
		// The packet filter is the node's again: the start has flushed it, since no machine runs.
		must(t, h, strings.Join([]string{"set -e", "nft -f - <<EOF", section(nodes, "nft -f - <<EOF\n", "EOF\n") + "EOF"}, "\n"))

		killed(t, h)
		must(t, h, reset)
		same(t, "the host after the reset", before, h.MustRun(t, have))

		// Later stages fail, and reset runs again: what has the node's names by now is the operator's.
		must(t, h, nodes)
		theirs := h.MustRun(t, have)
		began := strings.TrimSpace(h.MustRun(t, "date +%s.%N"))
		must(t, h, reset)
		same(t, "the host after the second reset", theirs, h.MustRun(t, have))
		if said := h.MustRun(t, "journalctl -b -o json --since=@"+began+" -u "+paths.ResetNetworkUnit); strings.Contains(said, "UNBOUNDED_CHANGED") {
			t.Errorf("the second reset says that it changed something:\n%s", said)
		}
	})
}

// section is what stands in s between two marks.
func section(s, from, to string) string {
	_, s, _ = strings.Cut(s, from)
	s, _, _ = strings.Cut(s, to)
	return s
}

// killed starts the stage of reset over and over, killed at one message to the kernel after another, and makes
// sure that some of them were.
func killed(t *testing.T, h *host.Host) {
	t.Helper()
	kills := 0
	for _, when := range []int{2, 9, 16, 23, 30} {
		h.WriteFile(t, paths.SystemdDir+"/"+paths.ResetNetworkUnit+".d/kill.conf", host.File{Content: fmt.Sprintf(
			"[Service]\nSystemCallFilter=\nExecStart=\nExecStart=/usr/bin/strace -f -o /dev/null -e trace=sendmsg,renameat -e inject=sendmsg,renameat:signal=KILL:when=%d %s remove\n",
			when, program)})
		h.MustRun(t, "systemctl daemon-reload")
		if got := h.Run(t, reset); got.Code != 0 {
			kills++
		}
	}
	if kills == 0 {
		t.Error("nothing was killed")
	}
	t.Logf("killed %d times", kills)
	h.MustRun(t, "rm -r "+paths.SystemdDir+"/"+paths.ResetNetworkUnit+".d && systemctl daemon-reload")
}

// While a slot runs, and without permission, nothing is removed, and the cause is named.
func TestRefused(t *testing.T) {
	h := boot(t, "bookworm")
	must(t, h, start)
	must(t, h, "mkdir /etc/wireguard; "+nodes)
	must(t, h, mark+" && systemctl start "+paths.ResetMachinesUnit)
	h.WriteFile(t, paths.SystemdDir+"/"+paths.MachineUnit("kube2"), host.File{Content: "[Service]\nExecStart=/bin/sleep infinity\n"})
	h.MustRun(t, "systemctl daemon-reload")
	before := h.MustRun(t, have)
	for _, test := range []struct{ name, set, unset, unit, want string }{
		{
			name: "a slot runs", set: "systemctl start systemd-nspawn@kube2", unset: "systemctl stop systemd-nspawn@kube2",
			want: "kube2 runs, and the network is the node's: stop it",
		},
		{name: "not permitted", unit: "CapabilityBoundingSet=CAP_SYS_PTRACE", want: "CAP_NET_ADMIN is missing"},
		{name: "no netlink", unit: "RestrictAddressFamilies=AF_UNIX", want: "connect to rtnetlink"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.set != "" {
				must(t, h, test.set)
			}
			if test.unit != "" {
				h.WriteFile(t, paths.SystemdDir+"/"+paths.ResetNetworkUnit+".d/less.conf", host.File{Content: "[Service]\nCapabilityBoundingSet=\nRestrictAddressFamilies=\n" + test.unit + "\n"})
				h.MustRun(t, "systemctl daemon-reload")
			}
			line := program + " remove"
			if test.unit != "" {
				line = reset
			}
			if got := h.Run(t, line); got.Code == 0 {
				t.Error("it succeeded")
			}
			if cause := h.ReadFile(t, paths.LastFailure); !strings.Contains(cause, test.want) {
				t.Errorf("the cause is %s, want %q", cause, test.want)
			}
			same(t, "the host", before, h.MustRun(t, have))
			if test.unset != "" {
				must(t, h, test.unset)
			}
			if test.unit != "" {
				h.MustRun(t, "rm -r "+paths.SystemdDir+"/"+paths.ResetNetworkUnit+".d && systemctl daemon-reload")
			}
		})
	}
	must(t, h, reset)
	for _, name := range []string{"cbr0", "veth01234567", "kube-proxy", "KUBE-", "252", "5182", "wireguard"} {
		if got := h.MustRun(t, have+"; ls /etc"); strings.Contains(strings.ReplaceAll(got, "/etc/wireguard", ""), name) {
			t.Errorf("%s is left:\n%s", name, got)
		}
	}
}
