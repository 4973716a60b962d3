//go:build host

package hoststages

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

// Killed at one rename after another, the stages end where an undisturbed run does, and know the same of the host before.
func TestKilledAtEveryCommit(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		calm := boot(t, release, nil, nil)
		stages(t, calm)
		h := boot(t, release, nil, nil)
		for _, unit := range []string{paths.KernelUnit, paths.ConflictsUnit, paths.NftablesUnit} {
			program := paths.DefaultRoot + "/current/" + strings.TrimSuffix(unit, ".service")
			for _, when := range []int{1, 2, 3, 5, 8, 13, 21} {
				h.WriteFile(t, paths.SystemdDir+"/"+unit+".d/kill.conf", host.File{Content: fmt.Sprintf(
					"[Service]\nSystemCallFilter=\nExecStart=\nExecStart=/usr/bin/strace -f -o /dev/null -e trace=renameat,sendmsg -e inject=renameat,sendmsg:signal=KILL:when=%d %s converge\n",
					when, program)})
				h.MustRun(t, "systemctl daemon-reload")
				h.Run(t, "systemctl start "+unit)
			}
			h.MustRun(t, "rm -r "+paths.SystemdDir+"/"+unit+".d && systemctl daemon-reload")
			h.MustRun(t, "systemctl start "+unit)
		}
		stages(t, h)
		held(t, h)
		for _, concern := range []string{"kernel", "conflicts", "nftables"} {
			if diff := cmp.Diff(known(t, calm, concern), known(t, h, concern)); diff != "" {
				t.Errorf("before-image of %s (-undisturbed +killed):\n%s", concern, diff)
			}
		}
		options := host.TreeOptions{Paths: []string{"/etc"}, Exclude: []string{paths.ConfigDir, "/etc/machine-id", "/etc/ld.so.cache"}, NoTimes: true}
		if diff := cmp.Diff(calm.Tree(t, options), h.Tree(t, options)); diff != "" {
			t.Errorf("files (-undisturbed +killed):\n%s", diff)
		}
	})
}

// known is what a before-image says, but for what differs between two hosts.
func known(t *testing.T, h *host.Host, concern string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for object, entry := range entries(t, h, concern) {
		if strings.HasPrefix(object, "sysctl kernel.") || strings.HasPrefix(object, "sysctl vm.") {
			continue // one kernel for all hosts: another may have set it first
		}
		all[object] = fmt.Sprint(entry.Before.Absent, entry.Before.MissingDir, entry.Before.Mode, entry.Before.Value)
	}
	return all
}

// A swap unit of the operator, with a name that has to be escaped, does not start while its drop-in is there.
func TestSwapUnit(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		const unit = `var-lib-my\x2dswap.swap`
		h := boot(t, release, nil, map[string]host.File{
			paths.SystemdDir + "/" + unit:                   {Content: "[Unit]\nConditionPathExists=/never\n[Swap]\nWhat=/var/lib/my-swap\n"},
			paths.SystemdDir + "/swap.target.wants/" + unit: {Link: paths.SystemdDir + "/" + unit},
		})
		stages(t, h)
		if !h.Exists(t, paths.ConditionDropIn(unit)) {
			t.Fatalf("%s has no drop-in", unit)
		}
		// With the unit's own condition met, ours is what holds it back. No area is turned on: they are the kernel's, for all hosts.
		h.MustRun(t, "touch /never && systemctl start '"+unit+"'")
		if got := h.MustRun(t, "systemctl show -P ConditionResult '"+unit+"'; systemctl is-active '"+unit+"' || true"); got != "no\ninactive\n" {
			t.Errorf("condition and state are %q, want no, inactive", got)
		}
	})
}

// Rules that are not networkd's survive its restart, and on 257 routes do too; the stage itself does not restart it.
func TestNetworkdKeepsForeignRules(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		h := boot(t, release, nil, map[string]host.File{
			"/etc/systemd/network/10-up.network": {Content: "[Match]\nName=up0\n[Network]\nAddress=10.77.0.2/24\nGateway=10.77.0.1\nLinkLocalAddressing=no\n"},
		})
		h.MustRun(t, "ip link add up0 type veth peer name up1 && ip link set up1 up && networkctl reload")
		h.Await(t, waitLimit, "ip -br addr show up0 | grep -q 10.77.0.2")
		pid := h.MustRun(t, "systemctl show -P MainPID systemd-networkd")
		stages(t, h)
		if got := h.MustRun(t, "systemctl show -P MainPID systemd-networkd"); got != pid {
			t.Error("the stage restarted systemd-networkd")
		}
		h.MustRun(t, "systemctl restart systemd-networkd")
		h.Await(t, waitLimit, "networkctl status up0 | grep -q '(configured)' && ip -br addr show up0 | grep -q 10.77.0.2")
		h.MustRun(t, "ip rule add pref 32765 lookup 252 && ip route add 10.9.0.0/24 via 10.77.0.1 table 252")
		h.MustRun(t, "systemctl restart systemd-networkd")
		h.Await(t, waitLimit, "networkctl status up0 | grep -q '(configured)' && ip -br addr show up0 | grep -q 10.77.0.2")
		if got := h.Run(t, "ip rule | grep -q 32765"); got.Code != 0 {
			t.Error("the node's rule is gone")
		}
		if got := h.Run(t, "ip route show table 252 | grep -q 10.9.0.0"); got.Code != 0 && release != "bookworm" {
			t.Error("the node's route is gone") // 252 takes the uplink's address away, and the kernel its routes
		}
	})
}
