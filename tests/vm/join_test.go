//go:build vm

package vm_test

import (
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/vm"
)

// A real node of a real cluster on a real disk: the power goes the moment the node is complete, and after
// the boot it is Ready by itself. A reset ends it.
func TestJoinAndCut(t *testing.T) {
	if !full() {
		t.Skip("takes minutes: UNBOUNDED_FAULT=full runs it")
	}
	v := vm.Boot(t, vm.Options{})
	result := v.Run(t, "systemctl start "+paths.Target)
	if result.Code != 0 {
		t.Fatalf("start = %d\n%s", result.Code, result.Err)
	}
	t.Logf("first start: %v", result.Took.Round(time.Second))
	v.Cut(t)
	v.On(t)
	took := v.Ground.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
	t.Logf("Ready %v after the boot", took.Round(time.Second))
	v.MustRun(t, "systemctl start "+paths.Target+" && test -e "+paths.Complete)
	result = v.Run(t, "systemctl start "+paths.ResetTarget+" && test ! -e "+paths.Record)
	t.Logf("reset: %d after %v", result.Code, result.Took.Round(time.Second))
	if result.Code != 0 {
		t.Errorf("reset = %d\n%s", result.Code, result.Err)
	}
}

// readyLimit bounds what a kubelet takes under emulation.
const readyLimit = 5 * time.Minute
