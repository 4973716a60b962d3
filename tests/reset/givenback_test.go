//go:build cluster || fault

package reset

import (
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/compare"
	"unbounded/tests/ground"
)

// The host of an operator, with his docker, firewall, swap and daemon.json, is his again: after a complete node with
// all that a CNI makes, and after an install that was cut off behind each stage.
func TestGivenBack(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		if release == "trixie" && !full {
			return // TestGivenBackOverReboot is a sample of it
		}
		g := boot(t, release)
		g.MustRun(t, runtime)
		before := compare.Take(t, g.Host)

		install(t, g)
		g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
		g.MustRun(t, network)
		t.Logf("reset: %v", resets(t, g).Round(time.Millisecond))
		same(t, g, "after a node and a reset", before)
		resets(t, g)
		same(t, g, "after a reset of a host that has nothing", before)

		cuts := []string{paths.NftablesUnit, paths.NodeUnit("kube1")}
		if full {
			cuts = paths.StageUnits("kube1")
		}
		for _, unit := range cuts {
			must(t, g, "systemctl start "+unit)
			resets(t, g)
			same(t, g, "after an install up to "+unit+" and a reset", before)
		}
	})
}

// Over a reboot of the host, what its own services make is made by them.
func TestGivenBackOverReboot(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		if release == "bookworm" && !full {
			return // TestGivenBack is a sample of it
		}
		g := boot(t, release)
		g.SeesReboots(t)
		before := compare.Take(t, g.Host)
		install(t, g)
		g.MustRun(t, network)
		g.Reboot(t)
		resets(t, g)
		same(t, g, "after a node, a reboot and a reset", before)
		g.Reboot(t)
		same(t, g, "and after another reboot", before)
	})
}
