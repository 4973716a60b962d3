//go:build host || cluster || fault

// Package reset tests that a reset gives a host back, whatever was installed, ran, was broken or is in the way.
package reset

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"unbounded/internal/failure"
	"unbounded/internal/paths"
	"unbounded/tests/compare"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

const (
	start      = "systemctl start " + paths.Target
	reset      = "systemctl start " + paths.ResetTarget
	tree       = paths.Machines + "/kube1"
	readyLimit = 2 * time.Minute
	waitLimit  = time.Minute
)

// operators is what an operator has on a host: services and rules that a node has to put aside, and files of his own in
// every folder that he shares with us.
func operators() map[string]host.File {
	sleeper := "\n[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
	files := map[string]host.File{
		"/etc/nftables.conf": {Mode: 0o755, Content: "#!/usr/sbin/nft -f\nflush ruleset\n" +
			"table inet operator {\n\tchain input {\n\t\ttype filter hook input priority filter; policy accept;\n\t\ttcp dport 4710 counter drop\n\t}\n}\n"},
		paths.SystemdDir + "/sysinit.target.wants/nftables.service": {Link: "/lib/systemd/system/nftables.service"},
		paths.SystemdDir + "/docker.service":                        {Content: "[Unit]\nRequires=docker.socket\n" + sleeper},
		paths.SystemdDir + "/docker.socket":                         {Content: "[Socket]\nListenStream=/run/docker.sock\n[Install]\nWantedBy=sockets.target\n"},
		paths.SystemdDir + "/containerd.service":                    {Content: sleeper},
		paths.SystemdDir + "/docker.service.d/own.conf":             {Content: "[Service]\nNice=1\n"},
		"/etc/docker/daemon.json":                                   {Content: "{\n\t\"debug\": true,\n\t\"log-level\": \"warn\"\n}\n", Mode: 0o640},
		"/etc/fstab":                                                {Content: "# swap was here\n/dev/absent none swap sw,nofail 0 0\n"},
		"/etc/sysctl.d/99-kubernetes.conf":                          {Content: "net.ipv4.conf.all.log_martians=1\n", Mode: 0o600},
		"/etc/sysctl.d/98-own.conf":                                 {Content: "net.ipv4.conf.default.log_martians=1\n"},
		"/etc/apt/apt.conf.d/98-own":                                {Content: "// own\n"},
		"/etc/wireguard/server.priv":                                {Content: "an operator's key\n", Mode: 0o600},
		paths.NspawnDir + "/other.nspawn":                           {Content: "[Exec]\nBoot=no\n"},
		paths.Machines + "/other/etc/own":                           {Content: "x\n"},
		paths.Machines + "/.kube3.partial/own":                      {Content: "x\n"},
	}
	for unit, target := range map[string]string{"docker.service": "multi-user", "docker.socket": "sockets", "containerd.service": "multi-user"} {
		files[paths.SystemdDir+"/"+target+".target.wants/"+unit] = host.File{Link: paths.SystemdDir + "/" + unit}
	}
	return files
}

// runtime is what an operator has made by hand in this boot.
const runtime = `set -e
nft add rule inet operator input tcp dport 4711 counter accept
nft 'add table ip mine; add set ip mine hosts { type ipv4_addr; flags interval; }; add element ip mine hosts { 192.0.2.0/24 }'
ip link add br-own type bridge
ip addr add 198.51.100.1/24 dev br-own
ip link add wg0 type bridge
ip rule add pref 100 table 1000
ip -6 rule add pref 100 table 1000
ip route add 203.0.113.0/24 dev host0 table 1000
ip route add 203.0.113.0/24 dev host0 table 51900
ip rule add pref 200 table 51830
ip route add 203.0.113.0/24 dev host0 table 51830
sysctl -qw net.ipv4.conf.host0.rp_filter=2
`

// network is what the cluster's CNI and kube-proxy leave in the host's network, as far as this kernel has it.
const network = `set -e
ip link add cbr0 type bridge
ip addr add 10.244.1.1/24 dev cbr0
ip link add vxlan0 type vxlan id 1 dstport 4789
ip link set vxlan0 master cbr0
ip link set cbr0 up
for v in 4 6; do
	ip -$v rule add pref 32765 table 252
	ip -$v rule add pref 101 fwmark 7 table 51820
done
ip -4 route add 100.64.0.0/16 dev cbr0 table 252
ip -6 route add 2001:db8::/64 dev cbr0 table 252
ip -4 route add 100.65.0.0/16 dev cbr0 table 51899
for t in iptables-nft ip6tables-nft; do
	$t -t nat -N UNBOUNDED-MASQUERADE
	$t -t nat -A POSTROUTING -m comment --comment 'unbounded-net: masquerade' -j UNBOUNDED-MASQUERADE
	$t -t mangle -N UNBOUNDED-MSS-CLAMP
	$t -t mangle -A FORWARD -j UNBOUNDED-MSS-CLAMP
	$t -t filter -A FORWARD -i wg51820 -m comment --comment 'unbounded-net: accept tunnel traffic' -j ACCEPT
	$t -t nat -N KUBE-SERVICES
	$t -t nat -A PREROUTING -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES
	$t -t filter -N KUBE-FORWARD
	$t -t filter -A FORWARD -j KUBE-FORWARD
done
nft 'add table ip kube-proxy; add chain ip kube-proxy services'
nft 'add table ip unbounded_localdns; add chain ip unbounded_localdns output'
`

func releases(t *testing.T, test func(t *testing.T, release string)) {
	t.Helper()
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) { test(t, release) })
	}
}

// boot boots an operator's host on a ground of its own.
func boot(t *testing.T, release string) *ground.Ground {
	t.Helper()
	return ground.Boot(t, ground.Options{Host: host.Options{Release: release, Overlay: operators()}})
}

// must runs a command line and shows the journal of what it did when it fails.
func must(t *testing.T, g *ground.Ground, script string) {
	t.Helper()
	if result := g.Run(t, script); result.Code != 0 {
		t.Fatalf("%s = %d\n%s\n%s", script, result.Code, result.Err, journal(t, g))
	}
}

func journal(t *testing.T, g *ground.Ground) string {
	t.Helper()
	return g.Run(t, "journalctl -b -o short-monotonic --no-hostname -u 'unbounded-*' | tail -n 80").Out
}

// same holds the host to being what it was.
func same(t *testing.T, g *ground.Ground, when string, before compare.Snapshot) {
	t.Helper()
	if diff := compare.Diff(before, compare.Take(t, g.Host)); len(diff) > 0 {
		t.Errorf("%s the host is not what it was, %d differences:\n%s", when, len(diff), strings.Join(diff, "\n"))
	}
}

// fails runs a reset that has to fail, and gives the cause.
func fails(t *testing.T, g *ground.Ground, unit string, says ...string) failure.Failure {
	t.Helper()
	result := g.Run(t, reset)
	if result.Code == 0 {
		t.Fatalf("the reset succeeded, want %s to fail\n%s", unit, journal(t, g))
	}
	f := lastFailure(t, g)
	if f.Unit != unit {
		t.Errorf("the last failure is of %s, want %s: %s", f.Unit, unit, f.Cause)
	}
	for _, want := range says {
		if !strings.Contains(f.Cause, want) {
			t.Errorf("cause %q, want %q in it", f.Cause, want)
		}
	}
	if got := phase(t, g); got != "resetting" {
		t.Errorf("after a failed reset the phase is %q, want resetting", got)
	}
	return f
}

func lastFailure(t *testing.T, g *ground.Ground) failure.Failure {
	t.Helper()
	var f failure.Failure
	if err := json.Unmarshal([]byte(g.ReadFile(t, paths.LastFailure)), &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// phase is that of the record, "" without one.
func phase(t *testing.T, g *ground.Ground) string {
	t.Helper()
	if !g.Exists(t, paths.Record) {
		return ""
	}
	var record struct{ Phase string }
	if err := json.Unmarshal([]byte(g.ReadFile(t, paths.Record)), &record); err != nil {
		t.Fatal(errors.Join(err, errors.New(paths.Record)))
	}
	return record.Phase
}

// dropIn puts lines into a unit, until undo.
func dropIn(t *testing.T, g *ground.Ground, unit, lines string) (undo func()) {
	t.Helper()
	folder := "/run/systemd/system/" + unit + ".d"
	g.WriteFile(t, folder+"/test.conf", host.File{Content: lines})
	g.MustRun(t, "systemctl daemon-reload")
	return func() { g.MustRun(t, "rm -r "+folder+" && systemctl daemon-reload") }
}

// install makes the host a node.
func install(t *testing.T, g *ground.Ground) {
	t.Helper()
	must(t, g, start)
}

// resets runs a reset that has to succeed.
func resets(t *testing.T, g *ground.Ground) time.Duration {
	t.Helper()
	result := g.Run(t, reset)
	if result.Code != 0 {
		t.Fatalf("%s = %d\n%s\n%s", reset, result.Code, result.Err, journal(t, g))
	}
	over(t, g)
	return result.Took
}

// idle waits until nothing of ours has anything to do.
func idle(t *testing.T, g *ground.Ground) {
	t.Helper()
	g.Await(t, waitLimit, "test -z \"$(systemctl list-jobs --no-legend)\"")
}

// over holds the host to being nobody's, with nothing of ours that runs or is to run.
func over(t *testing.T, g *ground.Ground) {
	t.Helper()
	idle(t, g) // the target stops when its job has ended, not with it
	if g.Exists(t, paths.Record) {
		t.Errorf("after a reset there is a record, phase %q", phase(t, g))
	}
	for _, list := range []string{"list-units --plain 'unbounded-*' 'systemd-nspawn@kube*' --state=active,activating,reloading,deactivating,failed", "list-jobs"} {
		if left := g.MustRun(t, "systemctl --no-legend --no-pager "+list); left != "" {
			t.Errorf("after a reset systemctl %s has:\n%s", list, left)
		}
	}
	if state := strings.TrimSpace(g.Run(t, "systemctl is-enabled "+paths.BootUnit).Out); state != "disabled" {
		t.Errorf("after a reset %s is %s", paths.BootUnit, state)
	}
}
