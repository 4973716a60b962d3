package overlay

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"unbounded/internal/exit"
	"unbounded/internal/nft"
)

// standIns are for kernels without the modules: a veth serves for what they lack.
func standIns() Kinds {
	kinds := Public()
	kinds[wireguard], kinds["geneve0"], kinds["ipip0"], kinds["unbounded0"], kinds["localdns"] = "veth", "veth", "veth", "veth", "veth"
	return kinds
}

// namespace moves the test into a network namespace of its own, and skips where that, or ip and nft, are not to be had.
func namespace(t *testing.T) *Network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs the %s program", program)
		}
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and the namespace with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("unshare: %v", err)
	}
	n, err := Dial(0, standIns())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// run runs the lines of script, each a command.
func run(t *testing.T, script string) {
	t.Helper()
	for line := range strings.Lines(script) {
		argv := strings.Fields(line)
		if len(argv) == 0 {
			continue
		}
		if output, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, output)
		}
	}
}

// state is all that there is in the network, as the programs of the host show it.
func state(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, command := range []string{
		"ip -o link", "ip -o addr", "ip -4 rule", "ip -6 rule", "ip -4 route show table all", "ip -6 route show table all", "nft list ruleset",
	} {
		argv := strings.Fields(command)
		output, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).Output()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		all[command] = string(output)
	}
	return all
}

// host is what an operator has: things that look like a node's, and some that have its very names.
const host = `
ip link set lo up
ip link add eth0 type vxlan id 9 dstport 4790
ip addr add 192.0.2.1/24 dev eth0
ip link set eth0 addrgenmode none
ip link set eth0 up
ip -6 addr add 2001:db8::1/64 dev eth0 nodad
ip route add default via 192.0.2.254
ip link add wg0 type bridge
ip link add br0 type bridge
ip link add vethdeadbeef type veth peer name pod0
ip link set vethdeadbeef master br0
ip route add 198.51.100.0/24 via 192.0.2.9 table 777
ip route add blackhole 198.51.100.0/24 table 51819
ip rule add pref 32764 from 198.51.100.0/24 table 777
ip rule add pref 32765 from 198.51.100.1 table 777
ip -6 rule add pref 50 unreachable from 2001:db8:bad::/48
nft add table inet operator
nft add chain inet operator input { type filter hook input priority 0 ; }
nft add rule inet operator input tcp dport 22 accept
`

// operators makes it, and waits for the last thing that the kernel adds of its own accord: IPv6 is configured by a worker.
func operators(t *testing.T) {
	t.Helper()
	run(t, host)
	for end := time.Now().Add(10 * time.Second); !strings.Contains(state(t)["ip -6 route show table all"], "local 2001:db8::1 dev eth0"); {
		if time.Now().After(end) {
			t.Fatal("the kernel made no local route to 2001:db8::1")
		}
	}
}

// hostNames are what it has of a node's names.
const hostNames = `
ip link add wg51877 type veth peer name theirs
ip route add blackhole 203.0.113.0/24 table 252
ip route add 203.0.113.0/24 dev eth0 table 51820
ip rule add pref 100 fwmark 0x51 table 51820
nft add table ip kube-proxy
nft add table ip nat
nft add chain ip nat KUBE-OLD
`

// node is what a node makes.
const node = `
ip link add cbr0 type bridge
ip link add veth01234567 type veth peer name pod1
ip link set veth01234567 master cbr0
ip addr add 10.244.0.1/24 dev cbr0
ip link set cbr0 up
ip link add wg51820 type veth peer name wg51821
ip link set wg51820 up
ip link set wg51821 up
ip link add vxlan0 type vxlan id 1 dstport 4789
ip link add geneve0 type veth peer name unbounded0
ip link add ipip0 type veth peer name localdns
ip route add 10.245.0.0/16 dev wg51820 table 252
ip route add blackhole 10.244.0.0/16 table 252
ip -6 route add unreachable 2001:db8:5::/48 table 252
ip route add default dev wg51821 table 51821
ip route add 10.246.0.0/16 via 192.0.2.7 table 51899
ip -6 route add default via 2001:db8::7 table 51822
ip rule add pref 32765 table 252
ip -6 rule add pref 32765 table 252
ip rule add pref 101 fwmark 0x1 table 51821
ip -6 rule add pref 101 fwmark 0x1 table 51822
nft add table ip6 kube-proxy
nft add table ip unbounded_localdns
nft add table ip filter
nft add chain ip filter KUBE-FORWARD
nft add chain ip filter FORWARD { type filter hook forward priority 0 ; }
nft add rule ip filter FORWARD jump KUBE-FORWARD
nft add rule ip filter FORWARD counter accept comment "unbounded-net:tunnel"
`

// change collects what a removal says.
type change struct{ removed, left []string }

func (c *change) log() Log {
	return Log{
		Removed: func(object string) { c.removed = append(c.removed, object) },
		Left:    func(line string) { c.left = append(c.left, line) },
	}
}

// What a node made is gone and all else is as it was: with a note of what was there, and without.
func TestRemove(t *testing.T) {
	for _, known := range []bool{true, false} {
		t.Run(map[bool]string{true: "noted", false: "by name"}[known], func(t *testing.T) {
			n := namespace(t)
			operators(t)
			if known {
				run(t, hostNames)
			}
			want := state(t)
			names, err := n.Names()
			if err != nil {
				t.Fatal(err)
			}
			if !known && len(names) > 0 {
				t.Errorf("the operator's host has names of a node: %q", names)
			}
			was := Before{
				Known: known,
				Has:   func(name string) bool { return slices.Contains(names, name) },
				Part:  func(part nft.Part) bool { return slices.Contains(names, part.String()) },
			}
			run(t, node)
			var said change
			if err := n.Remove(was, said.log()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, state(t)); diff != "" {
				t.Errorf("the host (-before +after):\n%s", diff)
			}
			if !slices.Contains(said.removed, "link cbr0") || slices.Contains(said.removed, "link wg0") {
				t.Errorf("removed %q", said.removed)
			}
			var again change
			if err := n.Remove(was, again.log()); err != nil || len(again.removed) > 0 {
				t.Errorf("the second time removed %q, %v", again.removed, err)
			}
		})
	}
}

// A rule of the host that the kernel would take for the node's is not hit.
func TestRuleOfTheHost(t *testing.T) {
	n := namespace(t)
	run(t, "ip rule add pref 100 fwmark 0x51 table 51820")
	names, err := n.Names()
	if err != nil {
		t.Fatal(err)
	}
	run(t, "ip rule add pref 100 table 51820\nip rule add pref 101 table 51820")
	was := Before{
		Known: true,
		Has:   func(name string) bool { return slices.Contains(names, name) }, Part: func(nft.Part) bool { return false },
	}
	var said change
	if err := n.Remove(was, said.log()); err != nil {
		t.Fatal(err)
	}
	if got := state(t)["ip -4 rule"]; !strings.Contains(got, "fwmark 0x51") || strings.Contains(got, "101:") {
		t.Errorf("left:\n%s", got)
	}
}

// Killed after one of the removals, the next run ends where an undisturbed one does.
func TestRemoveCutOff(t *testing.T) {
	n := namespace(t)
	operators(t)
	want := state(t)
	was := Before{Has: func(string) bool { return false }, Part: func(nft.Part) bool { return false }}
	for count := 1; ; count += 3 {
		run(t, node)
		left := count
		cut := errors.New("cut off")
		func() {
			defer func() {
				if r := recover(); r != nil && r != cut { //nolint:errorlint // a panic of this test
					panic(r)
				}
			}()
			log := Log{Left: func(string) {}, Removed: func(string) {
				if left--; left == 0 {
					panic(cut)
				}
			}}
			if err := n.Remove(was, log); err != nil {
				t.Fatal(err)
			}
		}()
		var said change
		if err := n.Remove(was, said.log()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, state(t)); diff != "" {
			t.Fatalf("cut off at %d (-before +after):\n%s", count, diff)
		}
		if left > 0 {
			break // there were not so many
		}
		if count > 100 {
			t.Fatal("never ends")
		}
	}
}

// A WireGuard link of the operator's with wg-quick's table of 51820 goes on, by name alone too.
func TestForeignTunnel(t *testing.T) {
	n := namespace(t)
	run(t, `
ip link set lo up
ip link add tunnel type veth peer name other
ip link set tunnel up
ip link set other up
ip route add default dev tunnel table 51820
ip rule add pref 32764 not fwmark 0xca6c table 51820
ip rule add pref 32763 table main suppress_prefixlength 0
`)
	want := state(t)
	var said change
	nobody := Before{Has: func(string) bool { return false }, Part: func(nft.Part) bool { return false }}
	if err := n.Remove(nobody, said.log()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, state(t)); diff != "" {
		t.Errorf("the host (-before +after):\n%s", diff)
	}
	if len(said.removed) > 0 || len(said.left) != 2 {
		t.Errorf("removed %q, left %q", said.removed, said.left)
	}
}

func TestNotPermitted(t *testing.T) {
	namespace(t)
	// The capabilities of this thread only, which ends with the test.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var capabilities [2]unix.CapUserData
	if err := unix.Capset(&header, &capabilities[0]); err != nil {
		t.Fatal(err)
	}
	n, err := Dial(0, Public())
	if exit.Of(err) != exit.NotPermitted {
		t.Errorf("Dial = %v, %v, want not permitted", n, err)
	}
}
