//go:build host

package hoststages

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/paths"
	"unbounded/tests/compare"
	"unbounded/tests/host"
)

// giveBack is the part of a reset that puts the host back, with its real unit, and then what other stages remove.
const giveBack = `/opt/unbounded/current/unbounded-reset begin &&
	systemctl start --job-mode=ignore-dependencies unbounded-reset-host.service`

const forget = "rm -rf /var/lib/unbounded/agent /run/unbounded /run/unbounded-agent-install.lock"

// foreign is a table of somebody else with what a ruleset can have in it.
const foreign = `nft -f - <<'END'
table inet foreign {
	set hosts { type ipv4_addr; flags interval; elements = { 10.1.0.0/16, 10.3.0.1 } }
	map ports { type inet_service : verdict; elements = { 22 : accept, 23 : drop } }
	counter seen { packets 5 bytes 700 }
	quota most { over 1 mbytes used 3 kbytes }
` + flowtable + `	chain input { type filter hook input priority 10; policy accept;
		ip saddr @hosts counter packets 7 bytes 900 accept comment "mine"
		tcp dport vmap @ports
		tcp dport 1 counter name "seen" jump { ip saddr 10.9.9.9 drop; }
	}
}
END
`

const flowtable = "	flowtable fast { hook ingress priority 0; devices = { host0 }; }\n"

// added is a rule that is in no file.
const added = "nft add rule inet operator input tcp dport 4444 counter packets 3 bytes 180 drop"

const area = "/var/lib/machines/.swap"

// again reboots, and somebody else's table is loaded in that boot too.
func again(t *testing.T, h *host.Host) {
	t.Helper()
	h.Reboot(t)
	h.MustRun(t, strings.Replace(foreign, flowtable, "", 1)) // the link comes later
}

func reset(t *testing.T, h *host.Host) {
	t.Helper()
	if got := h.Run(t, giveBack); got.Code != 0 {
		t.Fatalf("reset = %d\n%s\n%s", got.Code, got.Err, journal(t, h))
	}
}

func same(t *testing.T, h *host.Host, when string, before compare.Snapshot) {
	t.Helper()
	h.MustRun(t, forget)
	for _, line := range compare.Diff(before, compare.Take(t, h)) {
		t.Errorf("%s: %s", when, line)
	}
}

// The operator's docker, firewall, swap, daemon.json and parameters are as they were, in the same boot and in another.
func TestGivenBack(t *testing.T) {
	for _, release := range []string{"bookworm", "trixie"} { // one after the other: swap areas are seen by all hosts
		t.Run(release, func(t *testing.T) {
			h := boot(t, release, nil, map[string]host.File{
				paths.SystemdDir + "/containerd.service": {Content: sleeper}, // runs, and is not enabled
				paths.SystemdDir + "/kubelet.service":    {Content: sleeper}, // neither
				"/etc/sysctl.d/50-host.conf":             {Content: "kernel.panic = 7\n"},
				// Its addresses come and go.
				paths.SystemdDir + "/multi-user.target.wants/systemd-networkd.service": {Absent: true},
			})
			h.MustRun(t, "systemctl start containerd && sysctl -qw net.ipv4.conf.host0.forwarding=1 net.ipv4.conf.all.rp_filter=1")
			h.MustRun(t, foreign+added)
			t.Cleanup(func() { // the area is the kernel's, not the host's, and would outlive it
				if out, err := h.Command(context.WithoutCancel(t.Context()), "sh", "-c", "! test -e "+area+" || swapoff -a || swapoff "+area).CombinedOutput(); err != nil {
					t.Errorf("swapoff: %v: %s", err, out)
				}
			})
			h.MustRun(t, "fallocate -l 8M "+area+" && chmod 600 "+area+" && mkswap "+area+" && swapon -p 5 "+area)
			before, rules := compare.Take(t, h), withoutHandles(ruleset(t, h))

			stages(t, h)
			reset(t, h)
			if diff := cmp.Diff(rules, withoutHandles(ruleset(t, h))); diff != "" {
				t.Errorf("the ruleset (-before +after):\n%s", diff)
			}
			same(t, h, "same boot", before)
			if got := h.MustRun(t, "systemctl show -p ExecStart -p DropInPaths nftables.service"); !strings.Contains(got, "nft") || strings.Contains(got, "unbounded") {
				t.Errorf("nftables.service is %s, want it the distribution's", got)
			}
			// A second one has nothing to do.
			reset(t, h)
			same(t, h, "again", before)
			h.MustRun(t, "swapoff -a && rm "+area)

			again(t, h)
			before = compare.Take(t, h)
			stages(t, h)
			again(t, h)
			reset(t, h)
			same(t, h, "another boot", before)
			again(t, h)
			same(t, h, "and one more", before)
		})
	}
}

// Killed at any moment, the next reset finishes, and all is as it was.
func TestGivenBackAfterKills(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		h := boot(t, release, nil, map[string]host.File{
			paths.SystemdDir + "/containerd.service": {Content: sleeper},
			// Its addresses come and go.
			paths.SystemdDir + "/multi-user.target.wants/systemd-networkd.service": {Absent: true},
		})
		h.MustRun(t, "systemctl start containerd && sysctl -qw net.ipv4.conf.host0.forwarding=1")
		h.MustRun(t, foreign+added)
		before, rules := compare.Take(t, h), withoutHandles(ruleset(t, h))
		kills := 0
		for delay := 20; delay <= 620; delay += 100 {
			stages(t, h)
			h.MustRun(t, fmt.Sprintf(`/opt/unbounded/current/unbounded-reset begin
				systemctl start --no-block --job-mode=ignore-dependencies unbounded-reset-host.service
				sleep 0.%03d
				systemctl kill -s KILL unbounded-reset-host.service || true`, delay))
			h.Await(t, waitLimit, "! systemctl is-active unbounded-reset-host.service | grep -q ing")
			if state(t, h, "unbounded-reset-host.service") == "failed" {
				kills++
			}
			reset(t, h)
			if diff := cmp.Diff(rules, withoutHandles(ruleset(t, h))); diff != "" {
				t.Fatalf("killed after %d ms, the ruleset (-before +after):\n%s", delay, diff)
			}
			same(t, h, fmt.Sprintf("killed after %d ms", delay), before)
			if t.Failed() {
				t.Fatal(journal(t, h))
			}
		}
		if kills == 0 {
			t.Error("no kill hit")
		}
		t.Logf("%d kills hit", kills)
	})
}
