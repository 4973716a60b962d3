//go:build cluster || fault

package reset

import (
	"testing"

	"unbounded/tests/compare"
)

// A reset that failed leaves the phase resetting, the next one finishes, and then the host is installed as another one
// and joins.
func TestAgain(t *testing.T) {
	g := boot(t, "trixie")
	before := compare.Take(t, g.Host)
	install(t, g)
	stages := []string{"host"}
	if full {
		stages = []string{"daemon", "machines", "network", "nspawn", "trees", "host", "state", "release"}
	}
	for _, stage := range stages {
		undo := dropIn(t, g, "unbounded-reset-"+stage+".service", "[Service]\nExecStartPost=/bin/false\n")
		if result := g.Run(t, reset); result.Code == 0 {
			t.Errorf("the reset succeeded although %s failed", stage)
		}
		if got := phase(t, g); got != "resetting" && stage != "release" {
			t.Errorf("after a failure of %s the phase is %q, want resetting", stage, got)
		}
		undo()
		if phase(t, g) != "" {
			refused(t, g, 78)
		}
	}
	resets(t, g)
	same(t, g, "after the second reset", before)

	g.WriteConfig(t, map[string]any{"MachineName": "another", "NodeName": "another"})
	install(t, g)
	g.Cluster.AwaitReady(t, "another", readyLimit)
	resets(t, g)
	g.WriteConfig(t, nil)
	same(t, g, "after a reset of the other node", before)
}
