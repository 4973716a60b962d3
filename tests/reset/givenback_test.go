//go:build cluster

package reset

import (
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/compare"
	"unbounded/tests/ground"
)

// The host of an operator, with his docker, firewall, swap and daemon.json, is his again: after a complete node with
// all that a CNI makes, after some cut-off installs, and over a reboot.
func TestGivenBack(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		g := boot(t, release, nil)
		g.MustRun(t, runtime)
		before := compare.Take(t, g.Host)

		must(t, g, start)
		g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
		g.MustRun(t, network)
		resets(t, g)
		same(t, g, "after a node and a reset", before)
		must(t, g, reset)
		same(t, g, "after a reset of a host that has nothing", before)

		for _, unit := range []string{paths.NftablesUnit, paths.NodeUnit("kube1")} {
			must(t, g, "systemctl start "+unit)
			resets(t, g)
			same(t, g, "after an install up to "+unit+" and a reset", before)
		}
	})
}

// Over a reboot of the host, what its own services make is made by them.
func TestGivenBackOverReboot(t *testing.T) {
	g := boot(t, "trixie", nil)
	before := compare.Take(t, g.Host)
	must(t, g, start)
	g.MustRun(t, network)
	g.Reboot(t)
	resets(t, g)
	same(t, g, "after a node, a reboot and a reset", before)
	g.Reboot(t)
	same(t, g, "and after another reboot", before)
}

// resets runs a reset that has to succeed, twice, the second of which must find nothing to do.
func resets(t *testing.T, g *ground.Ground) time.Duration {
	t.Helper()
	result := g.Run(t, reset)
	if result.Code != 0 {
		t.Fatalf("%s = %d\n%s\n%s", reset, result.Code, result.Err, journal(t, g))
	}
	if got := phase(t, g); got != "" {
		t.Errorf("after a reset there is a record, phase %q", got)
	}
	return result.Took
}
