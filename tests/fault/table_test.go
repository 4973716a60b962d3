//go:build fault

package fault

import (
	"fmt"
	"strings"
	"testing"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

// state are the folders of admission, completion and reset.
func state() []string {
	return []string{"/var/lib/unbounded", "/run/unbounded", paths.ConfigDir}
}

// kernelParameters are those that the kernel helper sets, and those that they drag along.
func kernelParameters() sysctls {
	return sysctls{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_max*",
		"net/bridge/bridge-nf-call-ip*", "net/ipv4/ip_forward", "net/ipv4/conf/*/src_valid_mark", "net/ipv4/conf/*/rp_filter",
		"net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/accept_redirects",
	}
}

func operatorUnits() running { return running{"docker.service", "nftables.service"} }

// hostTable are the helpers that need a host and nothing in it.
func hostTable() []row {
	return []row{
		{
			helper: "admission", verb: []string{"admit"}, what: "on a fresh host", roots: state(), newID: true,
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				s.MustRun(t, "rm -rf /var/lib/unbounded/agent /run/unbounded/*")
			},
		},
		{
			helper: "admission", verb: []string{"admit"}, what: "on a complete host without marker", roots: state(),
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				s.phase(t, "complete")
				s.WriteFile(t, paths.LastFailure, host.File{Content: "{}"})
			},
		},
		{helper: "admission", verb: []string{"complete"}, roots: state()},
		{helper: "kernel", aspects: []aspect{kernelParameters()}, between: []string{paths.Before + "/kernel.json"}},
		{helper: "conflicts", aspects: []aspect{operatorUnits(), ruleset{}}},
		{helper: "nftables", aspects: []aspect{ruleset{}}},
		{helper: "node", verb: []string{"converge", slot}, what: "on a new tree", setup: plantTree, roots: nodeRoots()},
	}
}

func nodeRoots() []string {
	return []string{"/etc/systemd", "/var/lib/unbounded", "/var/lib/machines", "/run/unbounded"}
}

// plantTree is a tree as the rootfs helper leaves it, as far as the node helper looks.
func plantTree(t *testing.T, s *scene) {
	t.Helper()
	tree := paths.Tree(slot)
	s.MustRun(t, "mkdir -p "+tree+"/etc/systemd/system "+tree+"/usr/local/bin "+tree+"/var/lib "+tree+"/run "+tree+"/opt && echo ID=test >"+tree+"/etc/os-release")
}

// TestHelpers runs the table.
func TestHelpers(t *testing.T) {
	var all []result
	t.Run("host", func(t *testing.T) {
		all = append(all, runTable(t, hostTable(), func(t *testing.T) *scene { return newScene(t, newAuthority(t), nil) })...)
	})
	summary(t, all)
}

// runTable runs the rows that are wanted on one host.
func runTable(t *testing.T, table []row, boot func(t *testing.T) *scene) []result {
	t.Helper()
	var s *scene
	var all []result
	for _, r := range table {
		if len(r.verb) == 0 {
			r.verb = []string{"converge"}
		}
		if !wanted(r.name()) {
			continue
		}
		if s == nil {
			s = boot(t)
		}
		t.Run(strings.ReplaceAll(r.name(), " ", "_"), func(t *testing.T) {
			got := result{name: r.name(), bad: 1} // what a row that does not get to its end counts
			defer func() { all = append(all, got) }()
			got = runRow(t, s, r)
		})
	}
	return all
}

// summary prints what came of all rows. A row without points fails.
func summary(t *testing.T, all []result) {
	t.Helper()
	total := result{name: "all"}
	var text strings.Builder
	for _, r := range all {
		fmt.Fprintln(&text, r)
		total.points, total.bad, total.calls, total.took = total.points+r.points, total.bad+r.bad, total.calls+r.calls, total.took+r.took
		if r.points == 0 {
			t.Errorf("%s has no points", r.name)
		}
	}
	if len(all) == 0 {
		t.Error("no row was run")
	}
	fmt.Printf("%sfault: %d points, %d exceptions, %.0f s\n", &text, total.points, total.bad, total.took.Seconds())
}
