//go:build cluster

// Package attack breaks the main job on purpose, as a bad night would: kills, power
// cuts, rubbish where files should be, servers that misbehave, and things that get in the way.
package attack

import (
	"os"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

const readyLimit = 2 * time.Minute

// startTarget starts the target and demands success.
func startTarget(t *testing.T, g *ground.Ground) {
	t.Helper()
	result := g.Run(t, "systemctl start "+paths.Target)
	if result.Code != 0 {
		t.Fatalf("start = %d\n%s\n%s", result.Code, result.Err, g.Run(t, "journalctl -b -o short-monotonic --no-hostname -u 'unbounded-*' | tail -n 60").Out)
	}
}
