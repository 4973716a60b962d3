// Package graph holds the unit files against systemd itself: the resolved graph, their
// syntax, their exposure, and the names that the programs use.
package graph

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/paths"
	"unbounded/units"
)

var update = flag.Bool("update", false, "write the golden file anew")

const nobody = 65534

// lay writes the rendered units into a folder that everybody can read, with
// programs to be found, and returns the folder.
func lay(t *testing.T) (dir string, names []string) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		skip(t, "systemd-analyze is missing: install systemd")
	}
	dir, err := os.MkdirTemp("", "unbounded-graph-") //nolint:usetesting // t.TempDir is closed to the user nobody
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	root := filepath.Join(dir, "root")
	rendered, err := units.Rendered(root)
	if err != nil {
		t.Fatal(err)
	}
	mkdir(t, dir, filepath.Join(dir, "units"), root, filepath.Join(root, "current"))
	for name, content := range rendered {
		write(t, filepath.Join(dir, "units", name), content, 0o644)
		for _, program := range regexp.MustCompile(`(?m)^ExecStart=(\S+)`).FindAllStringSubmatch(content, -1) {
			write(t, program[1], "#!/bin/sh\n", 0o755)
		}
	}
	return dir, slices.Sorted(maps.Keys(rendered))
}

func mkdir(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// skip says loudly that a level is missing; in CI that is a failure.
func skip(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal("SKIPPED LEVEL graph: " + why)
	}
	t.Skip("SKIPPED LEVEL graph: " + why)
}

func TestVerify(t *testing.T) {
	dir, names := lay(t)
	args := []string{"verify", "--man=no", "--recursive-errors=one"}
	for _, name := range names {
		args = append(args, filepath.Join(dir, "units", name))
	}
	out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "unbounded") {
			t.Errorf("not clean: %s", line)
		}
	}
}

// ceilings are a ratchet: they may be lowered, and raised only with a reason in the unit.
var ceilings = map[string]float64{
	"unbounded-admit.service":          2.1,
	"unbounded-boot.service":           1.8,
	"unbounded-boot-complete.service":  1.8,
	"unbounded-complete.service":       2.1,
	"unbounded-conflicts.service":      3.3,
	"unbounded-failed.service":         2.0,
	"unbounded-join@.service":          3.0,
	"unbounded-kernel.service":         3.8,
	"unbounded-machine@.service":       4.8,
	"unbounded-nftables.service":       2.6,
	"unbounded-network.service":        2.6,
	"unbounded-node@.service":          3.4,
	"unbounded-preflight.service":      4.6,
	"unbounded-prerequisites.service":  9.0,
	"unbounded-reset-begin.service":    2.1,
	"unbounded-reset-daemon.service":   2.5,
	"unbounded-reset-host.service":     3.7,
	"unbounded-reset-machines.service": 4.7,
	"unbounded-reset-network.service":  2.7,
	"unbounded-reset-nspawn.service":   2.3,
	"unbounded-reset-release.service":  2.1,
	"unbounded-reset-state.service":    2.7,
	"unbounded-reset-trees.service":    4.8,
	"unbounded-rootfs@.service":        4.4,
	"unbounded-verify.service":         2.5,
}

func TestSecurityCeilings(t *testing.T) {
	dir, names := lay(t)
	level := regexp.MustCompile(`exposure level for .*: ([0-9.]+)`)
	for _, name := range names {
		if !strings.HasSuffix(name, ".service") {
			continue
		}
		ceiling, ok := ceilings[name]
		if !ok {
			t.Errorf("%s has no ceiling", name)
			continue
		}
		out, _ := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=100", filepath.Join(dir, "units", name)).CombinedOutput()
		match := level.FindStringSubmatch(string(out))
		if match == nil {
			t.Errorf("%s: no exposure level in:\n%s", name, out)
			continue
		}
		if got, err := strconv.ParseFloat(match[1], 64); err != nil || got > ceiling {
			t.Errorf("%s: exposure %v, %v, ceiling %v", name, got, err, ceiling)
		}
	}
}

// TestGraph compares what systemd makes of the units, dependencies and conditions that
// came from elsewhere left out, with the golden file.
func TestGraph(t *testing.T) {
	dir, _ := lay(t)
	for target, golden := range goldens() {
		t.Run(target, func(t *testing.T) { compare(t, dir, target, golden) })
	}
}

// goldens are what people and boots start, and the file that has its graph.
func goldens() map[string]string {
	return map[string]string{
		paths.Target: "testdata/graph.golden", paths.ResetTarget: "testdata/reset.golden",
		paths.BootUnit: "testdata/boot.golden", paths.BootCompleteUnit: "testdata/boot-complete.golden",
	}
}

func compare(t *testing.T, dir, target, golden string) {
	t.Helper()
	const manager = "/lib/systemd/systemd"
	if _, err := os.Stat(manager); err != nil {
		skip(t, manager+" is missing: install systemd")
	}
	cmd := exec.Command(manager, "--test", "--system", "--unit="+target)
	cmd.Env = []string{"SYSTEMD_UNIT_PATH=" + dir + "/units:/lib/systemd/system", "PATH=/usr/bin:/bin"}
	cmd.Dir = "/"
	if os.Geteuid() == 0 { // as root it refuses to test
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", manager, err, tail(string(out)))
	}
	got := digest(string(out))
	if *update {
		write(t, golden, got, 0o644)
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("graph (-golden +systemd), -update writes it anew:\n%s", diff)
	}
}

func tail(s string) string { return s[max(0, len(s)-2000):] }

var (
	unitLine = regexp.MustCompile(`^\t*-> Unit (\S+):`)
	edgeLine = regexp.MustCompile(`^\t*(Requires|Requisite|Wants|BindsTo|PartOf|Conflicts|Before|After|OnFailure|RequiresMountsFor|StopWhenUnneeded|Start Limit|StartLimitIntervalSec|ConditionPathExists|Triggers|Upholds): (.+)`)
	origin   = regexp.MustCompile(` \((origin|destination)[^)]*\)| untested$`)
)

// digest is, for each unit of ours, its own dependencies on units of ours, its conditions, and whether it is started.
func digest(dump string) string {
	found := map[string][]string{}
	unit := ""
	jobs := false
	for line := range strings.Lines(dump) {
		line = strings.TrimRight(line, "\n")
		if match := unitLine.FindStringSubmatch(line); match != nil {
			unit = match[1]
			continue
		}
		if strings.HasPrefix(line, "->") || strings.Contains(line, "By jobs") || strings.HasPrefix(line, "-> By units") {
			jobs = strings.Contains(line, "jobs")
		}
		if strings.Contains(line, "Action: unbounded-") {
			found["(started)"] = append(found["(started)"], strings.TrimSpace(line))
		}
		if match := edgeLine.FindStringSubmatch(line); match != nil && ours(unit) && !jobs {
			value := origin.ReplaceAllString(match[2], "")
			if match[1] == "Before" || (!ours(value) && !strings.Contains(match[1], "Condition") && !strings.Contains(value, "machine-id")) {
				continue
			}
			found[unit] = append(found[unit], match[1]+"="+value)
		}
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintf(&out, "%s\n", name)
		slices.Sort(found[name])
		for _, edge := range slices.Compact(found[name]) {
			fmt.Fprintf(&out, "  %s\n", edge)
		}
	}
	return out.String()
}

func ours(unit string) bool { return strings.HasPrefix(unit, "unbounded-") }

func TestRequiresComesWithAfter(t *testing.T) {
	rendered, err := units.Rendered("/r")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range rendered {
		has := func(key string) (all []string) {
			for _, match := range regexp.MustCompile(`(?m)^`+key+`=(.*)$`).FindAllStringSubmatch(content, -1) {
				all = append(all, strings.Fields(match[1])...)
			}
			return all
		}
		after := has("After")
		for _, unit := range has("Requires") {
			if !slices.Contains(after, unit) {
				t.Errorf("%s: Requires=%s without After=", name, unit)
			}
		}
		for _, key := range []string{"After", "Before"} {
			for _, unit := range has(key) {
				if strings.Contains(unit, "@.") {
					t.Errorf("%s: %s=%s names a bare template, which orders nothing", name, key, unit)
				}
				if unit == "network-online.target" {
					t.Errorf("%s: %s=%s would wait for a network that may never be online", name, key, unit)
				}
			}
		}
		if got := has("RequiresMountsFor"); !slices.Equal(got, []string{"/var/lib/unbounded", "/var/lib/machines", "/r"}) {
			t.Errorf("%s: RequiresMountsFor=%v: a late mount would make an installed host look fresh", name, got)
		}
		if strings.Contains(content, "@root@") {
			t.Errorf("%s: the token is left", name)
		}
		if strings.HasSuffix(name, ".service") && name != paths.BootUnit && !strings.Contains(content, "\nTimeoutStartSec=") {
			t.Errorf("%s: no TimeoutStartSec=: a oneshot has none by default", name)
		}
	}
}

// TestNames holds the names of internal/paths against the unit files, and the programs that these start against helpers/.
func TestNames(t *testing.T) {
	rendered, err := units.Rendered("/r")
	if err != nil {
		t.Fatal(err)
	}
	named := slices.Concat(paths.StageUnits("kube1"), paths.ResetUnits(),
		[]string{paths.Target, paths.ResetTarget, paths.FailedUnit, paths.BootUnit, paths.BootCompleteUnit})
	for _, unit := range named {
		if _, ok := rendered[strings.Replace(unit, "@kube1", "@", 1)]; !ok {
			t.Errorf("internal/paths names %s, which is no unit file", unit)
		}
	}
	if len(rendered) != len(named) {
		t.Errorf("%d unit files, internal/paths names %d: %v", len(rendered), len(named), slices.Sorted(maps.Keys(rendered)))
	}
	for target, stages := range map[string][]string{paths.Target: paths.StageUnits("kube1"), paths.ResetTarget: paths.ResetUnits()} {
		for _, unit := range stages {
			if !strings.Contains(rendered[target], "\nRequires="+unit+"\n") || !strings.Contains(rendered[target], "\nAfter="+unit+"\n") {
				t.Errorf("%s does not require, and come after, %s", target, unit)
			}
		}
	}
	for name, content := range rendered {
		for _, match := range regexp.MustCompile(`(?m)^ExecStart=/r/current/unbounded-(\S+)`).FindAllStringSubmatch(content, -1) {
			if _, err := os.Stat("../../helpers/" + match[1] + "/main.go"); err != nil {
				t.Errorf("%s starts unbounded-%s: %v", name, match[1], err)
			}
		}
	}
}

// A reset is one stage after the other. Conflicts= would let any start of the bootstrap cancel it.
func TestResetIsAChain(t *testing.T) {
	rendered, err := units.Rendered("/r")
	if err != nil {
		t.Fatal(err)
	}
	stages := paths.ResetUnits()
	for i, unit := range stages {
		if i > 0 && !strings.Contains(rendered[unit], "\nRequires="+stages[i-1]+"\n") {
			t.Errorf("%s does not require %s", unit, stages[i-1])
		}
	}
	for _, unit := range append(stages, paths.ResetTarget) {
		if strings.Contains(rendered[unit], "\nConflicts=") {
			t.Errorf("%s has Conflicts=", unit)
		}
	}
}
