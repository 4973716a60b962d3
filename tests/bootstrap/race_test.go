//go:build cluster

package bootstrap

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

// Starts in each other's way, at moments spread over a whole bootstrap, and a daemon-reexec in the middle:
// all end well and each thing is built once.
func TestConcurrentStarts(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		few := map[string]int{"bookworm": 2, "trixie": 5}[release]
		for _, starts := range []int{few, 20} {
			t.Run(fmt.Sprint(starts), func(t *testing.T) {
				g := ground.Boot(t, ground.Options{Host: host.Options{Release: release}})
				// A client that systemd disconnects in a reexec ends with an error of its own, so
				// each asks for its job again: what counts is that the target's job succeeds.
				script := fmt.Sprintf(`
					for i in $(seq %d); do
						( sleep $(( RANDOM %% 80 ))e-1 2>/dev/null || true; systemctl start %s; echo "start $? $i" ) &
					done
					( sleep 2; systemctl daemon-reload; sleep 1; systemctl daemon-reload ) &
					wait`, starts, paths.Target)
				result := g.Run(t, script)
				for line := range strings.Lines(result.Out) {
					if strings.HasPrefix(line, "start ") && !strings.HasPrefix(line, "start 0 ") {
						t.Errorf("%s", line)
					}
				}
				if got := strings.Count(result.Out, "start 0 "); got != starts {
					t.Errorf("%d of %d starts succeeded\n%s\n%s", got, starts, result.Err, journal(t, g))
				}
				once(t, g)
				g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
			})
		}
	})
}

func TestReexecInTheMiddle(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		g := ground.Boot(t, ground.Options{Host: host.Options{Release: release}})
		g.MustRun(t, "systemctl start --no-block "+paths.Target)
		g.Await(t, 2*time.Minute, "systemctl is-active "+paths.RootfsUnit("kube1")+" | grep -q activating")
		g.MustRun(t, "systemctl daemon-reexec")
		g.Await(t, 5*time.Minute, "test -e "+paths.Complete)
		startTarget(t, g)
		once(t, g)
		g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
	})
}

// once: the tree was put into place, and the machine started, a single time.
func once(t *testing.T, g *ground.Ground) {
	t.Helper()
	for _, row := range []struct{ what, command string }{
		{"machine starts", "journalctl -b -o cat _SYSTEMD_UNIT=init.scope + _PID=1 | grep -c 'Started " + paths.MachineUnit("kube1") + "'"},
		{"trees put into place", "journalctl -b -o cat UNBOUNDED_CHANGED=" + paths.Tree("kube1") + " | wc -l"},
	} {
		if got := strings.TrimSpace(g.Run(t, row.command).Out); got != "1" {
			t.Errorf("%s: %s, want 1", row.what, got)
		}
	}
}
