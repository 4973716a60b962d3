//go:build cluster

package extension

import (
	"encoding/json"
	"testing"

	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/tests/ground"
)

// A host that has booted with the extension joins by itself, and a boot after that starts no bootstrap.
func TestJoins(t *testing.T) {
	g := ground.Boot(t, ground.Options{Host: bare(t, "trixie")})
	g.MustRun(t, install)
	g.Cluster.AwaitReady(t, ground.NodeName, limit)
	g.Await(t, limit, "test -e "+paths.Complete+" && ! systemctl is-active --quiet unbounded-boot.service")
	var r record.Record
	if err := json.Unmarshal([]byte(g.ReadFile(t, paths.Record)), &r); err != nil {
		t.Fatal(err)
	}
	if r.Phase != record.Complete || r.Prefix != prefix {
		t.Errorf("the record has phase %s and prefix %s, want %s", r.Phase, r.Prefix, prefix)
	}
	g.MustRun(t, "systemctl start "+paths.VerifyUnit) // unit files and programs where the extension has them

	g.Reboot(t)
	g.Cluster.AwaitReady(t, ground.NodeName, limit)
	isIdle(t, g.Host)
}
