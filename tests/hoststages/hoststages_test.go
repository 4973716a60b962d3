//go:build host

// Package hoststages tests the stages that change the host itself, from their real units: prerequisites, kernel,
// conflicts and nftables. Preflight is stubbed, since it wants an API server.
package hoststages

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/before"
	"unbounded/internal/paths"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

// waitLimit is for what systemd does in a moment.
const waitLimit = 20 * time.Second

const start = "systemctl start " + paths.KernelUnit + " " + paths.NftablesUnit

// reloadCount counts the reloads of systemd in this boot.
const reloadCount = "journalctl -b -o cat _PID=1 | grep -c '^Reloading' || true"

// firewall is what an operator's Debian has: a service that flushes, loads rules that would cut the node off, and
// flushes again when it stops.
const firewall = `#!/usr/sbin/nft -f
flush ruleset
table inet operator {
	chain input {
		type filter hook input priority filter; policy accept;
		tcp dport 10250 counter drop
	}
}
`

// sleeper is a service of that name that just runs.
const sleeper = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"

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

func configuration(t *testing.T, more map[string]any) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	all := map[string]any{
		"MachineName": "m1",
		"Cluster": map[string]any{
			"Version": "v1.37.2", "ClusterDNS": "10.96.0.10", "CaCertBase64": base64.StdEncoding.EncodeToString(ca),
		},
		"Kubelet": map[string]any{
			"ApiServer": "https://api.test:6443", "Auth": map[string]any{"BootstrapToken": "abcdef.0123456789abcdef"},
		},
		"OCIImage": "registry.test/node:1",
	}
	maps.Copy(all, more)
	data, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// boot boots a host that is configured, with the operator's firewall, a docker, a networkd and a swap line.
func boot(t *testing.T, release string, config map[string]any, more map[string]host.File) *host.Host {
	t.Helper()
	overlay := map[string]host.File{
		paths.Config: {Content: configuration(t, config), Mode: 0o600},
		paths.SystemdDir + "/" + paths.PreflightUnit + ".d/stub.conf": {Content: "[Service]\nExecStart=\nExecStart=/bin/true\n"},

		"/etc/nftables.conf": {Content: firewall, Mode: 0o755},
		// A unit with two names of the list, as Debian's has.
		paths.SystemdDir + "/netfilter-persistent.service": {Content: "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\nExecStop=/usr/sbin/nft flush ruleset\n"},
		paths.SystemdDir + "/iptables.service":             {Link: paths.SystemdDir + "/netfilter-persistent.service"},
		paths.SystemdDir + "/multi-user.target.wants/netfilter-persistent.service": {
			Link: paths.SystemdDir + "/netfilter-persistent.service",
		},
		paths.SystemdDir + "/sysinit.target.wants/nftables.service": {Link: "/lib/systemd/system/nftables.service"},
		paths.SystemdDir + "/docker.service":                        {Content: sleeper},
		paths.SystemdDir + "/multi-user.target.wants/docker.service": {
			Link: paths.SystemdDir + "/docker.service",
		},
		paths.SystemdDir + "/multi-user.target.wants/systemd-networkd.service": {
			Link: "/lib/systemd/system/systemd-networkd.service",
		},
		"/etc/docker/daemon.json": {Content: "{\n\t\"debug\": true\n}\n"},
		"/etc/fstab":              {Content: "# swap was here\n/dev/absent none swap sw,nofail 0 0\n"},
	}
	maps.Copy(overlay, more)
	return host.Boot(t, host.Options{Release: release, Overlay: overlay})
}

func stages(t *testing.T, h *host.Host) {
	t.Helper()
	if got := h.Run(t, start); got.Code != 0 {
		t.Fatalf("%s = %d\n%s\n%s", start, got.Code, got.Err, journal(t, h))
	}
}

func journal(t *testing.T, h *host.Host) string {
	t.Helper()
	return h.Run(t, "journalctl -b -o short-monotonic --no-hostname -u 'unbounded-*' | tail -n 60").Out
}

func ruleset(t *testing.T, h *host.Host) string {
	t.Helper()
	return h.MustRun(t, "nft -a list ruleset")
}

func state(t *testing.T, h *host.Host, unit string) string {
	t.Helper()
	return strings.TrimSpace(h.Run(t, "systemctl is-active "+unit).Out)
}

// cause is what the last failure says.
func cause(t *testing.T, h *host.Host) (text string, status int) {
	t.Helper()
	var failure struct {
		Cause  string
		Status int
	}
	if err := json.Unmarshal([]byte(h.ReadFile(t, paths.LastFailure)), &failure); err != nil {
		t.Fatal(err)
	}
	return failure.Cause, failure.Status
}

// entries is the before-image of a concern, by kind and object.
func entries(t *testing.T, h *host.Host, concern string) map[string]before.Entry {
	t.Helper()
	var image struct{ Entries []before.Entry }
	if err := json.Unmarshal([]byte(h.ReadFile(t, paths.Before+"/"+concern+".json")), &image); err != nil {
		t.Fatal(err)
	}
	found := map[string]before.Entry{}
	for _, entry := range image.Entries {
		found[string(entry.Kind)+" "+entry.Object] = entry
	}
	return found
}

// files are those that the stages write, or must not write, with times.
func files(t *testing.T, h *host.Host) host.Tree {
	t.Helper()
	return h.Tree(t, host.TreeOptions{Paths: []string{"/etc", "/var/lib/unbounded", "/opt", "/usr"}})
}

func TestFirstStartSecondStartReboot(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		h := boot(t, release, nil, nil)
		if got := ruleset(t, h); !strings.Contains(got, "table inet operator") {
			t.Fatalf("the operator's firewall is not there:\n%s", got)
		}
		stages(t, h)
		held(t, h)
		if got := h.ReadFile(t, "/etc/fstab"); got != "# swap was here\n# unbounded: /dev/absent none swap sw,nofail 0 0\n" {
			t.Errorf("fstab = %q", got)
		}
		if got := h.ReadFile(t, "/etc/docker/daemon.json"); got != "{\n  \"iptables\": false,\n\t\"debug\": true\n}\n" {
			t.Errorf("daemon.json = %q", got)
		}
		conflicts := entries(t, h, "conflicts")
		for _, unit := range []string{"nftables.service", "docker.service"} {
			if got := conflicts["unit "+unit].Before.Value; got != "active" {
				t.Errorf("before-image of %s is %q, want active", unit, got)
			}
		}
		if got := entries(t, h, "nftables")["ruleset inet operator"]; len(got.Before.Bytes) == 0 {
			t.Errorf("no before-image of the operator's table")
		}
		if got := entries(t, h, "kernel")["sysctl net.ipv4.ip_forward"].Before.Value; got != "0" {
			t.Errorf("before-image of ip_forward is %q, want 0", got)
		}

		first := files(t, h)
		reloads := h.MustRun(t, reloadCount)
		h.MustRun(t, "systemd-run -u watch nft monitor")
		// It watches once its netlink socket (protocol 12) has joined a group.
		h.Await(t, time.Minute, `awk '$2 == 12 && $4 != "00000000"' /proc/net/netlink | grep -q .`)
		stages(t, h)
		if got := h.MustRun(t, reloadCount); got != reloads {
			t.Errorf("the second start reloaded systemd: %s reloads, then %s", reloads, got)
		}
		if diff := cmp.Diff(first, files(t, h)); diff != "" {
			t.Errorf("the second start changed (-first +second):\n%s", diff)
		}
		if got := h.MustRun(t, "journalctl -b -o cat -u watch _COMM=nft"); strings.TrimSpace(got) != "" {
			t.Errorf("the second start wrote to nftables:\n%s", got)
		}
		h.MustRun(t, "systemctl stop watch")

		h.Reboot(t)
		held(t, h)
		if got := strings.TrimSpace(h.MustRun(t, "systemctl is-enabled nftables docker | sort -u")); got != "enabled" {
			t.Errorf("the operator's enablement is %q, want it untouched", got)
		}
	})
}

// held is what holds after the stages, and after a reboot without them.
func held(t *testing.T, h *host.Host) {
	t.Helper()
	for _, unit := range []string{"nftables.service", "docker.service", "netfilter-persistent.service", "iptables.service"} {
		if got := state(t, h, unit); got != "inactive" {
			t.Errorf("%s is %s, want inactive", unit, got)
		}
		h.Run(t, "systemctl start "+unit)
		if got := state(t, h, unit); got != "inactive" {
			t.Errorf("%s is %s after a start, want inactive", unit, got)
		}
	}
	if got := ruleset(t, h); strings.TrimSpace(got) != "" {
		t.Errorf("the slate is not clean:\n%s", got)
	}
	for key, want := range map[string]string{
		"net.ipv4.ip_forward": "1", "kernel.panic": "10", "net.bridge.bridge-nf-call-iptables": "1", "net.ipv4.conf.all.rp_filter": "0",
	} {
		if got := strings.TrimSpace(h.MustRun(t, "sysctl -n "+key)); got != want {
			t.Errorf("%s = %s, want %s", key, got, want)
		}
	}
}

func TestDrift(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		h := boot(t, release, nil, nil)
		stages(t, h)
		want := files(t, h)
		h.MustRun(t, `
			rm `+paths.ConditionDropIn("docker.service")+` && systemctl daemon-reload && systemctl start docker
			echo 'kernel.panic = 0' >/etc/sysctl.d/99-kubernetes.conf && sysctl -qw net.ipv4.ip_forward=0
			rm /etc/modules-load.d/99-unbounded.conf
			echo '/dev/other none swap sw 0 0' >>/etc/fstab
			nft add table ip stray`)
		stages(t, h)
		held(t, h)
		if got := h.ReadFile(t, "/etc/fstab"); !strings.HasSuffix(got, "\n# unbounded: /dev/other none swap sw 0 0\n") {
			t.Errorf("fstab = %q", got)
		}
		for _, path := range []string{
			paths.ConditionDropIn("docker.service"), "/etc/sysctl.d/99-kubernetes.conf", "/etc/modules-load.d/99-unbounded.conf",
		} {
			if _, there := want[path]; !there || !h.Exists(t, path) {
				t.Errorf("%s is not back", path)
			}
		}
		// The operator's version of our file is what a reset gives back.
		if got := entries(t, h, "kernel")["file /etc/sysctl.d/99-kubernetes.conf"].Before.Value; got != "kernel.panic = 0\n" {
			t.Errorf("before-image of the sysctl file is %q, want the operator's", got)
		}
		// An edited drop-in is repaired too, and what ran is stopped.
		h.MustRun(t, `echo '[Unit]' >`+paths.ConditionDropIn("docker.service")+` && systemctl daemon-reload && systemctl start docker`)
		stages(t, h)
		held(t, h)
	})
}

// With a machine that runs, the rules are the node's, whatever the stages, its restarts and the distribution's firewall do.
func TestRulesWhileMachineRuns(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		h := boot(t, release, nil, map[string]host.File{
			paths.Nspawn("kube1"): {Absent: true},
		})
		stages(t, h)
		h.WriteFile(t, paths.Nspawn("kube1"), host.File{
			Content: "[Exec]\nBoot=no\nParameters=/bin/sleep infinity\nPrivateUsers=no\n[Network]\nVirtualEthernet=no\n",
		})
		h.MustRun(t, "mkdir -p /var/lib/machines/kube1 && cp -a --one-file-system /bin /sbin /lib* /usr /etc /var/lib/machines/kube1/ && systemctl start systemd-nspawn@kube1")
		h.MustRun(t, `nft -f - <<'END'
table ip node {
	set endpoints { type ipv4_addr; elements = { 10.0.0.1, 10.0.0.2 }
	}
	chain services { type filter hook input priority 0; policy drop; ip saddr @endpoints counter accept; iifname "lo" accept; }
}
table inet foreign { }
END`)
		rules := ruleset(t, h)
		same := func(after string) {
			t.Helper()
			if diff := cmp.Diff(rules, ruleset(t, h)); diff != "" {
				t.Errorf("%s (-before +after):\n%s", after, diff)
			}
		}
		stages(t, h)
		same("after a start beside the machine")
		h.MustRun(t, "systemctl restart systemd-nspawn@kube1")
		stages(t, h)
		same("after the machine's second start")
		for _, verb := range []string{"reload", "restart", "reload-or-restart", "try-restart", "stop"} {
			h.Run(t, "systemctl "+verb+" nftables.service")
			same("after systemctl " + verb + " nftables")
		}

		// Somebody lets the firewall run beside the node: it is held back again, and its stop flushes nothing.
		h.MustRun(t, "rm "+paths.ConditionDropIn("nftables.service")+" && systemctl daemon-reload && sed -i '/^flush/d' /etc/nftables.conf && systemctl start nftables")
		rules = ruleset(t, h)
		if !strings.Contains(rules, "operator") || !strings.Contains(rules, "node") {
			t.Fatalf("the scene is not set:\n%s", rules)
		}
		stages(t, h)
		same("after a start beside the machine and the firewall")
		if got := state(t, h, "nftables.service"); got != "inactive" {
			t.Errorf("nftables.service is %s, want inactive", got)
		}
		h.Run(t, "systemctl reload nftables")
		same("after a reload of the held-back firewall")

		// A firewall that is a daemon flushes when it is told to end.
		h.WriteFile(t, paths.SystemdDir+"/firewalld.service", host.File{Content: "[Service]\n" +
			"ExecStart=/bin/sh -c 'trap \"nft flush ruleset; exit\" TERM; while :; do sleep 0.1; done'\n"})
		h.MustRun(t, "rm "+paths.ConditionDropIn("firewalld.service")+" && systemctl daemon-reload && systemctl start firewalld")
		stages(t, h)
		same("after a start beside the machine and a firewall daemon")
		if got := state(t, h, "firewalld.service"); got != "inactive" {
			t.Errorf("firewalld.service is %s, want inactive", got)
		}

		// Without the machine, the slate is clean again.
		h.MustRun(t, "systemctl stop systemd-nspawn@kube1")
		stages(t, h)
		if got := ruleset(t, h); strings.TrimSpace(got) != "" {
			t.Errorf("without the machine there is:\n%s", got)
		}
		image := entries(t, h, "nftables")
		for _, table := range []string{"inet operator", "ip node", "inet foreign"} {
			if len(image["ruleset "+table].Before.Bytes) == 0 {
				t.Errorf("no before-image of table %s", table)
			}
		}
	})
}

// When it cannot be told whether a machine runs, nothing is flushed.
func TestCannotTell(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		h := boot(t, release, nil, map[string]host.File{
			paths.SystemdDir + "/" + paths.NftablesUnit + ".d/deaf.conf": {
				Content: "[Service]\nInaccessiblePaths=/run/dbus /run/systemd/private\n",
			},
		})
		rules := ruleset(t, h)
		if got := h.Run(t, start); got.Code == 0 {
			t.Fatal("the stage succeeded")
		}
		if text, status := cause(t, h); !strings.Contains(text, "cannot tell whether a machine runs, nothing was flushed") || status != 1 {
			t.Errorf("cause = %q, status %d", text, status)
		}
		if diff := cmp.Diff(rules, ruleset(t, h)); diff != "" {
			t.Errorf("the ruleset changed:\n%s", diff)
		}
		if h.Exists(t, paths.Before+"/nftables.json") {
			t.Error("a before-image was written")
		}
	})
}

func TestHostFirewallKeep(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		h := boot(t, release, map[string]any{"HostFirewall": "keep"}, nil)
		rules := ruleset(t, h)
		stages(t, h)
		h.MustRun(t, "systemctl reload nftables.service")
		stages(t, h)
		if got := state(t, h, "nftables.service"); got != "active" {
			t.Errorf("nftables.service is %s, want active", got)
		}
		h.Reboot(t)
		if got := withoutHandles(ruleset(t, h)); got != withoutHandles(rules) {
			t.Errorf("the operator's rules changed:\n%s", cmp.Diff(withoutHandles(rules), got))
		}
		for _, unit := range paths.Firewalls() {
			if h.Exists(t, paths.ConditionDropIn(unit)) {
				t.Errorf("%s has a drop-in", unit)
			}
		}
		if got := state(t, h, "docker.service"); got != "inactive" {
			t.Errorf("docker.service is %s, want inactive", got)
		}
	})
}

func withoutHandles(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		line, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " # handle")
		fmt.Fprintln(&b, line)
	}
	return b.String()
}
