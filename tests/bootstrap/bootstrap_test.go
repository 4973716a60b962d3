//go:build cluster

// Package bootstrap tests the main job whole: a booted host, a registry, a mirror, a
// control plane, and the target started on it, again and again.
package bootstrap

import (
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

const reinstall = `sed -i 's/"phase": "complete"/"phase": "installing"/' ` + paths.Record + ` && rm -f ` + paths.Complete

func releases(t *testing.T, test func(t *testing.T, release string)) {
	t.Helper()
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) { test(t, release) })
	}
}

// running is what an unchanged retry must leave as it is.
type running struct {
	Leader, Containerd, Kubelet, Ruleset, Applied string
}

// settled waits until kubelet has made the last of its chains, one in each table: what it does of its own
// accord after that, it does seldom.
func settled(t *testing.T, g *ground.Ground) {
	t.Helper()
	g.Await(t, time.Minute, "for family in ip ip6; do for table in mangle nat filter; do nft list chain $family $table KUBE-KUBELET-CANARY || exit 1; done; done")
}

func observe(t *testing.T, g *ground.Ground) running {
	t.Helper()
	inner := func(unit string) string {
		return strings.TrimSpace(g.MustRun(t, "systemctl -M kube1 show -P MainPID "+unit))
	}
	return running{
		Leader:     strings.TrimSpace(g.MustRun(t, "machinectl show -p Leader --value kube1")),
		Containerd: inner("containerd"),
		Kubelet:    inner("kubelet"),
		Ruleset:    g.MustRun(t, "nft -s list ruleset"),
		Applied:    g.MustRun(t, "sha256sum "+paths.Applied("kube1")),
	}
}

// tree is every file of host and machine that nobody but us should touch, with times.
func tree(t *testing.T, g *ground.Ground) host.Tree {
	t.Helper()
	exclude := append([]string{
		// Written by a running kubelet, containerd or their pods at any moment.
		paths.Tree("*") + "/var/lib/kubelet", paths.Tree("*") + "/etc/cni", paths.Tree("*") + "/var/lib/cni",
		paths.Tree("*") + "/opt/containerd",
	}, host.Noise...)
	return g.Tree(t, host.TreeOptions{Exclude: exclude})
}

func TestBootstrap(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		g := ground.Boot(t, ground.Options{Host: host.Options{Release: release}})
		took := startTarget(t, g)
		t.Logf("first start: %v; Ready %v later", took.Round(time.Millisecond), g.Cluster.AwaitReady(t, ground.NodeName, readyLimit).Round(time.Millisecond))

		settled(t, g)
		for _, step := range []struct {
			name string
			run  func(*testing.T, *ground.Ground)
		}{
			{"target is an action", targetIsInactive},
			{"stages overlap", stagesOverlap},
			{"unchanged retry", unchangedRetry},
			{"complete host", completeHost},
			{"drift", drift},
			{"label", changedLabel},
			{"foreign table", foreignTable},
			{"reboot", rebooted},
			{"canary", canary},
		} {
			if !t.Run(step.name, func(t *testing.T) { step.run(t, g) }) {
				t.Logf("journal:\n%s", journal(t, g))
			}
		}
	})
}

func targetIsInactive(t *testing.T, g *ground.Ground) {
	if got := strings.TrimSpace(g.Run(t, "systemctl is-active "+paths.Target).Out); got != "inactive" {
		t.Errorf("%s is %s, want inactive: every start must run every stage", paths.Target, got)
	}
	if failed := g.MustRun(t, "systemctl list-units --no-legend --state=failed"); failed != "" {
		t.Errorf("failed units: %s", failed)
	}
}

// stagesOverlap: the image pull ran while host stages ran.
func stagesOverlap(t *testing.T, g *ground.Ground) {
	type span struct{ from, to int }
	spans := map[string]span{}
	for _, unit := range []string{paths.RootfsUnit("kube1"), paths.PrerequisitesUnit, paths.KernelUnit, paths.ConflictsUnit} {
		// Finished oneshots may be unloaded: the journal keeps when the job began and ended.
		out := g.MustRun(t, "journalctl -b -o export UNIT="+unit+" | grep -a -E '^(__MONOTONIC_TIMESTAMP|JOB_RESULT|MESSAGE_ID)='")
		times := regexp.MustCompile(`__MONOTONIC_TIMESTAMP=(\d+)`).FindAllStringSubmatch(out, -1)
		if len(times) < 2 {
			t.Fatalf("%s: no start and end in the journal:\n%s", unit, out)
		}
		from, _ := strconv.Atoi(times[0][1])
		to, _ := strconv.Atoi(times[1][1])
		spans[unit] = span{from, to}
	}
	pull := spans[paths.RootfsUnit("kube1")]
	for unit, other := range spans {
		if other.from > pull.to || other.to < pull.from {
			t.Errorf("%s ran %v, the image pull %v: they did not overlap", unit, other, pull)
		}
	}
}

// unchangedRetry starts the target on a host whose record was put back to installing, again and again. How long that takes
// is for tests/bench to say: here others share the processors.
func unchangedRetry(t *testing.T, g *ground.Ground) { retry(t, g, 5) }

// retry starts the target several times, holds it to changing nothing, and tells the shortest time.
func retry(t *testing.T, g *ground.Ground, times int) {
	t.Helper()
	// The phase and the marker are the test's own changes.
	trees := func() host.Tree {
		files := tree(t, g)
		for _, name := range []string{paths.Record, paths.Complete, paths.State} {
			delete(files, name)
		}
		return files
	}
	best := time.Hour
	before, files := observe(t, g), trees()
	for range times {
		g.MustRun(t, reinstall)
		best = min(best, startTarget(t, g))
	}
	if diff := cmp.Diff(before, observe(t, g)); diff != "" {
		t.Errorf("an unchanged retry changed what runs:\n%s", diff)
	}
	if diff := cmp.Diff(files, trees()); diff != "" {
		t.Errorf("an unchanged retry changed files:\n%s", diff)
	}
	t.Logf("unchanged retry: %v", best.Round(time.Millisecond))
}

func completeHost(t *testing.T, g *ground.Ground) {
	before := observe(t, g)
	cursor := strings.TrimSpace(g.MustRun(t, "journalctl -n 0 --show-cursor | sed -n 's/^-- cursor: //p'"))
	took := startTarget(t, g)
	t.Logf("start on a complete host: %v", took.Round(time.Millisecond))
	ran := g.MustRun(t, "journalctl -o cat --after-cursor='"+cursor+"' MESSAGE_ID=5f0c2a6be1f04b0e9f2f6d1a9c3e7b05 --output-fields=UNBOUNDED_STAGE -o export | sed -n 's/^UNBOUNDED_STAGE=//p' | sort -u")
	if want := "unbounded-admission\nunbounded-verify\n"; ran != want {
		t.Errorf("on a complete host ran:\n%swant:\n%s", ran, want)
	}
	if diff := cmp.Diff(before, observe(t, g)); diff != "" {
		t.Errorf("a start on a complete host changed what runs:\n%s", diff)
	}
}

func drift(t *testing.T, g *ground.Ground) {
	const sysctl = "/etc/sysctl.d/99-kubernetes.conf"
	machine := paths.Tree("kube1")
	for _, row := range []struct {
		name, harm, mended string
		keeps              func(before, after running) bool
	}{
		{"sysctl file", "rm " + sysctl, "test -s " + sysctl, sameRunning},
		{"sysctl value", "sysctl -q -w vm.overcommit_memory=0", "test $(sysctl -n vm.overcommit_memory) = 1", sameRunning},
		{"node binary", "rm " + machine + "/usr/local/bin/kubectl", "test -x " + machine + "/usr/local/bin/kubectl", sameRunning},
		{"kubelet setting", "sed -i 's/cluster.local/changed.local/' " + machine + paths.KubeletConfig, "grep -q cluster.local " + machine + paths.KubeletConfig, sameButKubelet},
		{"stopped kubelet", "systemctl -M kube1 stop kubelet", "systemctl -M kube1 is-active kubelet", sameButKubelet},
		{"nspawn settings", "rm " + paths.Nspawn("kube1"), "test -s " + paths.Nspawn("kube1"), sameRunning},
		{"drop-in", "rm -r " + paths.DropIn("kube1"), "test -s " + paths.DropInFile("kube1"), sameRunning},
		{
			"docker that runs again",
			`printf '[Service]\nExecStart=/bin/sleep infinity\n' > /etc/systemd/system/docker.service && rm -rf /etc/systemd/system/docker.service.d && systemctl daemon-reload && systemctl start docker && systemctl is-active docker`,
			"! systemctl is-active docker && ! { systemctl start docker && systemctl is-active docker; }", sameRunning,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			before := observe(t, g)
			g.MustRun(t, reinstall)
			g.MustRun(t, row.harm)
			startTarget(t, g)
			if got := g.Run(t, row.mended); got.Code != 0 {
				t.Errorf("not mended: %s\n%s%s", row.mended, got.Out, got.Err)
			}
			if after := observe(t, g); !row.keeps(before, after) {
				t.Errorf("changed what runs:\n%s", cmp.Diff(before, after))
			}
		})
	}
}

func sameRunning(before, after running) bool { return before == after }

func sameButKubelet(before, after running) bool {
	changed := before.Kubelet != after.Kubelet
	before.Kubelet = after.Kubelet
	return changed && before == after
}

func changedLabel(t *testing.T, g *ground.Ground) {
	before := observe(t, g)
	g.MustRun(t, reinstall)
	g.WriteConfig(t, map[string]any{"Kubelet.Labels.zone": "north"})
	startTarget(t, g)
	if after := observe(t, g); !sameButKubelet(before, after) {
		t.Errorf("want another kubelet and nothing else:\n%s", cmp.Diff(before, after))
	}
	retry(t, g, 1)
}

func foreignTable(t *testing.T, g *ground.Ground) {
	g.MustRun(t, "nft add table inet foreign && nft 'add chain inet foreign c { type filter hook input priority 0; }' && nft add rule inet foreign c tcp dport 4711 counter accept")
	retry(t, g, 1)
}

// rebooted: the machine comes back by itself, and nothing else on the host has a say in the packet filter.
func rebooted(t *testing.T, g *ground.Ground) {
	applied := observe(t, g).Applied
	g.Reboot(t)
	g.Await(t, time.Minute, "machinectl show kube1 && systemctl -M kube1 is-active containerd && systemctl -M kube1 is-active kubelet")
	g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
	settled(t, g)
	if got := observe(t, g).Applied; got != applied {
		t.Errorf("applied configuration changed over a reboot")
	}
	if state := strings.TrimSpace(g.Run(t, "systemctl is-enabled "+paths.MachineUnit("kube1")).Out); state != "enabled" {
		t.Errorf("%s is %s, want enabled", paths.MachineUnit("kube1"), state)
	}
	retry(t, g, 1)
}

// canary: the token is nowhere but in files that only root can read.
func canary(t *testing.T, g *ground.Ground) {
	// By a file: the search must not find its own arguments.
	const pattern = "/dev/canary"
	g.WriteFile(t, pattern, host.File{Content: g.Cluster.Token[strings.Index(g.Cluster.Token, ".")+1:] + "\n", Mode: 0o600})
	for what, command := range map[string]string{
		"the journal":                "journalctl -o export --no-pager; journalctl -M kube1 -o export --no-pager",
		"unit properties":            "systemctl show '*' --all; systemctl -M kube1 show '*' --all; systemctl status --no-pager '*'",
		"arguments and environments": "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null",
		"temporary files":            "find /tmp /var/tmp -type f -exec cat {} +",
	} {
		script := fmt.Sprintf("{ %s; } 2>/dev/null | grep -a -c -f %s", command, pattern)
		if found := strings.TrimSpace(g.Run(t, script).Out); found != "0" {
			t.Errorf("the token is in %s, %s times", what, found)
		}
	}
	holders := g.MustRun(t, "grep -r -l -s -a -f "+pattern+" /etc /var /run /opt /root /home --exclude-dir=proc --exclude-dir=sys --exclude-dir=log | xargs -r stat -c '%a %U %n' | sort")
	allowed := false
	for line := range strings.Lines(holders) {
		if !strings.HasPrefix(line, "600 root ") {
			t.Errorf("the token is in a file that others can read: %s", line)
		}
		allowed = allowed || strings.Contains(line, path.Base(paths.Config))
	}
	if !allowed {
		t.Errorf("the search found nothing, not even the configuration: it proves nothing")
	}
}
