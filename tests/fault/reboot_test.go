//go:build cluster || fault

package fault

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/tests/compare"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

const readyLimit = 2 * time.Minute

// unlike are files in which two installations differ, and what a running node writes.
var unlike = append([]string{
	"/etc/machine-id", "/etc/ld.so.cache", "/etc/unbounded", paths.Record,
	paths.Tree("*") + "/etc/machine-id", paths.Tree("*") + "/etc/unbounded", paths.Tree("*") + "/etc/kubernetes/pki",
	paths.Tree("*") + "/var/lib/kubelet", paths.Tree("*") + "/etc/cni", paths.Tree("*") + "/var/lib/cni",
	paths.Tree("*") + "/opt/containerd", paths.Tree("*") + "/etc/ld.so.cache", paths.Before,
}, host.Noise...)

// The power button is pressed behind each stage of the bootstrap and then of the reset: the next start goes on, the node becomes
// Ready, and the host is given back as it was. A second installation, left alone, makes the same files.
func TestReboots(t *testing.T) {
	if !wanted("reboot") {
		t.Skip("other rows are wanted")
	}
	began := time.Now()
	g := ground.Boot(t, ground.Options{Host: host.Options{Overlay: operator()}})
	g.SeesReboots(t)
	before := compare.Take(t, g.Host)
	forward, back := paths.StageUnits(slot), paths.ResetUnits()
	if !full {
		forward, back = some(forward, 2), some(back, 2)
	}
	for _, unit := range forward {
		rebootBehind(t, g, unit, paths.Target)
	}
	starts(t, g, paths.Target)
	g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
	disturbed := g.Tree(t, host.TreeOptions{Exclude: unlike, NoTimes: true})
	for _, unit := range back {
		rebootBehind(t, g, unit, paths.ResetTarget)
	}
	starts(t, g, paths.ResetTarget)
	if diff := compare.Diff(before, compare.Take(t, g.Host)); len(diff) > 0 {
		t.Errorf("the host is not what it was:\n%s", strings.Join(diff, "\n"))
	}
	starts(t, g, paths.Target)
	g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
	if diff := cmp.Diff(g.Tree(t, host.TreeOptions{Exclude: unlike, NoTimes: true}), disturbed); diff != "" {
		t.Errorf("files (-undisturbed +disturbed):\n%s", diff)
	}
	exceptions := 0
	if t.Failed() {
		exceptions = 1
	}
	tell(t, fmt.Sprintf("fault: reboot behind a stage: %d points, %d exceptions, %.1f s\n", len(forward)+len(back), exceptions, time.Since(began).Seconds()))
}

// some are n of a list, in its order.
func some(list []string, n int) []string {
	chosen := rand.Perm(len(list))[:n]
	slices.Sort(chosen)
	var all []string
	for _, at := range chosen {
		all = append(all, list[at])
	}
	return all
}

// rebootBehind starts a target and has the host reboot at once, without sync or shutdown, when a stage has ended well.
func rebootBehind(t *testing.T, g *ground.Ground, unit, target string) {
	t.Helper()
	t.Logf("reboot behind %s", unit)
	dropIn := paths.SystemdDir + "/" + unit + ".d/reboot.conf"
	g.WriteFile(t, dropIn, host.File{Content: "[Service]\nExecStartPost=+/bin/systemctl reboot -ff\n"})
	g.MustRun(t, "systemctl daemon-reload")
	g.Run(t, "systemctl start --no-block "+target) // the reboot may end it first
	g.WaitReboot(t)
	g.MustRun(t, "rm -r "+paths.SystemdDir+"/"+unit+".d && systemctl daemon-reload")
	if _, err := record.Open(fmt.Sprintf("/proc/%d/root", g.Leader())).Load(); err != nil && !errors.Is(err, record.ErrNone) {
		t.Errorf("the record after a reboot behind %s: %v", unit, err)
	}
}

// starts starts a target and demands success.
func starts(t *testing.T, g *ground.Ground, target string) {
	t.Helper()
	if result := g.Run(t, "systemctl start "+target); result.Code != 0 {
		t.Fatalf("start %s = %d\n%s\n%s", target, result.Code, result.Err, g.Run(t, "journalctl -b -o short-monotonic --no-hostname -u 'unbounded-*' | tail -n 60").Out)
	}
}
