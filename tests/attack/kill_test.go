//go:build cluster

package attack

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/failure"
	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

// own is what no two installations have in common: ids, credentials, and what a running kubelet writes.
var own = append([]string{
	"/etc/machine-id", "/etc/ld.so.cache", "/etc/unbounded", paths.Record, paths.SystemdDir + "/*/kill.conf",
	paths.Tree("*") + "/etc/machine-id", paths.Tree("*") + "/etc/unbounded", paths.Tree("*") + "/etc/kubernetes/pki",
	paths.Tree("*") + "/var/lib/kubelet", paths.Tree("*") + "/etc/cni", paths.Tree("*") + "/var/lib/cni",
	paths.Tree("*") + "/opt/containerd", paths.Tree("*") + "/etc/ld.so.cache", paths.Before,
}, host.Noise...)

func calmTree(t *testing.T, g *ground.Ground) host.Tree {
	t.Helper()
	return g.Tree(t, host.TreeOptions{Exclude: own, NoTimes: true})
}

// Each stage is killed at random system calls of its first work, the power is cut at random moments, and
// then a plain start ends where an undisturbed one does.
func TestKilled(t *testing.T) {
	calm := ground.Boot(t, ground.Options{})
	for _, unit := range order() {
		traced(t, calm, unit, "-o /run/calls."+unit+" -e trace="+calls, "")
	}
	startTarget(t, calm)
	calm.MustRun(t, "rm -r "+paths.SystemdDir+"/unbounded-*.d")
	want := calmTree(t, calm)
	count := map[string]int{}
	for _, unit := range order() {
		var most int // strace counts for each thread
		_, _ = fmt.Sscan(calm.MustRun(t, "cut -d' ' -f1 /run/calls."+unit+" | sort | uniq -c | sort -n | tail -n 1"), &most)
		count[unit] = most
	}
	calm.PowerOff(t)

	g := ground.Boot(t, ground.Options{})
	for _, unit := range order() {
		for range 2 {
			killed(t, g, unit, 1+rand.N(max(1, count[unit]/3)))
		}
		if unit == paths.RootfsUnit("kube1") || unit == paths.MachineStageUnit("kube1") {
			g.MustRun(t, "systemctl start --no-block "+paths.Target)
			wait := rand.N(3 * time.Second)
			t.Logf("power cut after %v", wait)
			time.Sleep(wait)
			g.PowerCut(t)
			g.On(t)
		}
	}
	startTarget(t, g)
	g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
	if diff := cmp.Diff(want, calmTree(t, g)); diff != "" {
		t.Errorf("tree (-undisturbed +killed):\n%s", diff)
	}
	if left := g.MustRun(t, "find / -xdev -ignore_readdir_race -name '*.unbounded-tmp-*'; find /var/lib/machines /var/lib/unbounded -ignore_readdir_race -name '*.unbounded-tmp-*' -o -name '*.partial'"); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// order is that of the stages with the one that takes longest first among those that run side by side.
func order() []string {
	units := paths.StageUnits("kube1")
	rootfs := paths.RootfsUnit("kube1")
	units = slices.DeleteFunc(units, func(unit string) bool { return unit == rootfs })
	return slices.Insert(units, 2, rootfs)
}

// calls are the system calls at which a stage is killed: what it opens, writes and commits, and whom it asks.
const calls = "openat,openat2,mkdirat,renameat,write,sendmsg,fsync,sendto,connect"

// traced runs a stage under strace.
func traced(t *testing.T, g *ground.Ground, unit, options, more string) {
	t.Helper()
	line := strings.TrimSpace(g.MustRun(t, "sed -n 's/^ExecStart=//p' "+paths.SystemdDir+"/"+template(unit)))
	g.WriteFile(t, paths.SystemdDir+"/"+unit+".d/kill.conf", host.File{Content: "[Service]\nSystemCallFilter=\nCapabilityBoundingSet=~\n" +
		"ExecStart=\nExecStart=/usr/bin/strace -f " + options + " " + line + "\n" + more})
	g.MustRun(t, "systemctl daemon-reload")
}

// killed starts the target with a stage that gets SIGKILL at a system call, and holds the failure file to naming
// it. Its threads share the calls, so it may end before: then it fails all the same, and what is behind it stays undone.
func killed(t *testing.T, g *ground.Ground, unit string, call int) {
	t.Helper()
	traced(t, g, unit, fmt.Sprintf("-o /dev/null -e trace=%s -e inject=%s:signal=KILL:when=%d", calls, calls, call), "ExecStartPost=+/bin/false\n")
	result := g.Run(t, "systemctl start "+paths.Target)
	end := strings.Fields(g.MustRun(t, "systemctl show -P ExecMainStatus "+unit))
	t.Logf("%s killed at call %d: start = %d after %v, status %s", unit, call, result.Code, result.Took.Round(time.Millisecond), end)
	if result.Code == 0 {
		t.Errorf("%s killed at call %d: start = 0", unit, call)
	}
	if slices.Equal(end, []string{"9"}) {
		// The handler runs after the start has returned. Until it is done, the file is that of an earlier kill.
		g.Await(t, time.Minute, "grep -q \"$(systemctl show -P InvocationID "+unit+")\" "+paths.LastFailure)
		var f failure.Failure
		if err := json.Unmarshal([]byte(g.ReadFile(t, paths.LastFailure)), &f); err != nil {
			t.Fatal(err)
		}
		if f.Unit != unit || f.Status != 137 {
			t.Errorf("%s killed at call %d: last failure is %+v", unit, call, f)
		}
	}
	// Of two attempts within the moment that it takes to tell of one, one is not told of.
	g.Await(t, time.Minute, "! systemctl list-jobs --no-legend | grep -q "+paths.FailedUnit)
	g.MustRun(t, "rm -r "+paths.SystemdDir+"/"+unit+".d; systemctl daemon-reload")
}

// template is the name of unit's file.
func template(unit string) string {
	if name, rest, ok := strings.Cut(unit, "@"); ok {
		return name + "@" + rest[strings.LastIndex(rest, "."):]
	}
	return unit
}
