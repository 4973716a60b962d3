//go:build host || fault

package fault

import (
	"fmt"
	"strings"
	"testing"
)

// sysctls are live kernel parameters, as globs below /proc/sys.
type sysctls []string

func (a sysctls) look(t *testing.T, s *scene) string {
	t.Helper()
	return s.MustRun(t, "cd /proc/sys && grep . "+strings.Join(a, " "))
}

func (a sysctls) set(t *testing.T, s *scene, was, now string) {
	t.Helper()
	have := map[string]bool{}
	for line := range strings.Lines(now) {
		have[line] = true
	}
	// ip_forward drags others along; so it is first, and everything is looked at again.
	var first, others strings.Builder
	for line := range strings.Lines(was) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		script := fmt.Sprintf("echo '%s' >%s\n", value, name)
		switch {
		case have[line]:
		case strings.HasSuffix(name, "/ip_forward"):
			first.WriteString(script)
		default:
			others.WriteString(script)
		}
	}
	s.MustRun(t, "cd /proc/sys && "+first.String()+others.String()+"true")
	if again := a.look(t, s); again != was && again != now {
		a.set(t, s, was, again)
	}
}

// ruleset is the packet filter.
type ruleset struct{}

func (ruleset) look(t *testing.T, s *scene) string {
	t.Helper()
	return s.MustRun(t, "nft list ruleset")
}

func (ruleset) set(t *testing.T, s *scene, was, _ string) {
	t.Helper()
	s.MustRun(t, "nft -f - <<'END'\nflush ruleset\n"+was+"\nEND\n")
}

// running is which units run.
type running []string

func (a running) look(t *testing.T, s *scene) string {
	t.Helper()
	return s.MustRun(t, "systemctl show -p Id,ActiveState,NeedDaemonReload,UnitFileState "+strings.Join(a, " "))
}

func (a running) set(t *testing.T, s *scene, was, now string) {
	t.Helper()
	script := "systemctl daemon-reload\n"
	states, have := strings.Split(was, "\n\n"), strings.Split(now, "\n\n")
	for i, unit := range a {
		if i < len(have) && states[i] == have[i] {
			continue
		}
		verb := "stop"
		if strings.Contains(states[i], "ActiveState=active") {
			verb = "start"
		}
		script += "systemctl " + verb + " '" + unit + "'\n"
	}
	s.MustRun(t, script)
	if again := a.look(t, s); again != was {
		t.Fatalf("units are\n%s\nwant\n%s", again, was)
	}
}

// nodesNetwork is what a node makes in the host's network.
type nodesNetwork struct{}

const makeNetwork = `set -e
ip link add cbr0 type bridge
ip link add veth01234567 type veth peer name pod1
ip link set veth01234567 master cbr0
ip addr add 10.244.0.1/24 dev cbr0
ip link set cbr0 addrgenmode none up
ip route add 10.245.0.0/16 via 192.168.77.1 table 252
ip -6 route add blackhole 2001:db8:5::/48 table 252
ip route add default dev cbr0 table 51821
ip rule add pref 32765 table 252
ip -6 rule add pref 32765 table 252
ip rule add pref 101 fwmark 0x1 table 51821
nft -f - <<EOF
table ip kube-proxy {
	chain services { type nat hook prerouting priority dstnat; }
}
table ip nat {
	chain KUBE-SERVICES { }
	chain PREROUTING { type nat hook prerouting priority dstnat; jump KUBE-SERVICES; }
}
EOF
`

const unmakeNetwork = `for link in cbr0 veth01234567 pod1; do ip link del $link; done
for table in 252 51821; do ip route flush table $table; ip -6 route flush table $table; done
ip rule del pref 32765; ip -6 rule del pref 32765; ip rule del pref 101
nft delete table ip kube-proxy; nft delete table ip nat
`

func (nodesNetwork) look(t *testing.T, s *scene) string {
	t.Helper()
	return s.MustRun(t, `ls /sys/class/net; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all | grep -v "fe80:\|ff00:"; nft list ruleset`)
}

func (nodesNetwork) set(t *testing.T, s *scene, _, _ string) {
	t.Helper()
	s.MustRun(t, "{ "+unmakeNetwork+"} 2>/dev/null\n"+makeNetwork)
}
