//go:build cluster

package bootstrap

import (
	"regexp"
	"strings"
	"testing"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

// A refreshed token and a moved mirror are the same installation, and what is still to be done is done with
// them; another version is refused, before and after the node has joined, and changes nothing.
func TestRefreshedConfiguration(t *testing.T) {
	g := ground.Boot(t, ground.Options{
		Host: host.Options{Release: "trixie"},
		Config: map[string]any{
			"Kubelet.Auth.BootstrapToken": "joiner.0000000000000000",
			// Nobody listens there: the binaries cannot come from it.
			"Downloads.Kubernetes.BaseURL": "http://192.168.77.1:1/kubernetes",
			"Preflight.IgnoreErrors":       []string{"kubernetes-artifacts"},
		},
	})
	if got := g.Run(t, start); got.Code != 1 {
		t.Fatalf("start with a mirror that is away = %d, want 1\n%s", got.Code, journal(t, g))
	}
	id := installID(t, g)
	g.WriteConfig(t, nil)
	startTarget(t, g)
	g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
	if now := installID(t, g); now != id {
		t.Errorf("installID %s, want %s: a retry is the same installation", now, id)
	}

	g.WriteConfig(t, map[string]any{"Cluster.Version": "v1.99.0"})
	settled(t, g)
	before := observe(t, g)
	if got := g.Run(t, start); got.Code != 1 {
		t.Errorf("start with another version = %d, want 1", got.Code)
	}
	if got := strings.TrimSpace(g.MustRun(t, "systemctl show -P ExecMainStatus "+paths.AdmitUnit)); got != "78" {
		t.Errorf("admission ended with %s, want 78", got)
	}
	if observe(t, g) != before {
		t.Error("a refusal changed what runs")
	}
}

func installID(t *testing.T, g *ground.Ground) string {
	t.Helper()
	match := regexp.MustCompile(`"installID": "([0-9a-f]{32})"`).FindStringSubmatch(g.ReadFile(t, paths.Record))
	if match == nil {
		t.Fatal("no installID in the record")
	}
	return match[1]
}
