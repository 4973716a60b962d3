//go:build cluster

package bench

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

// resetLimit is what the reset of a healthy node may take.
const resetLimit = 5 * time.Second

// BenchmarkReset gives back a host whose node is Ready, and says what each stage takes of that.
func BenchmarkReset(b *testing.B) {
	for _, release := range []string{"bookworm", "trixie"} {
		b.Run(release, func(b *testing.B) {
			g := ground.Boot(b, ground.Options{Host: host.Options{Release: release}})
			var whole time.Duration
			stages := map[string]time.Duration{}
			n := 0
			for b.Loop() {
				g.MustRun(b, "systemctl start "+paths.Target)
				g.Cluster.AwaitReady(b, ground.NodeName, 2*time.Minute)
				since := strings.TrimSpace(g.MustRun(b, "date +%s.%N"))
				whole += start(b, g, paths.ResetTarget)
				for stage, took := range split(b, g, since) {
					stages[stage] += took
				}
				n++
			}
			mean := whole / time.Duration(n)
			if mean > resetLimit {
				b.Errorf("a reset took %v, want under %v", mean, resetLimit)
			}
			b.ReportMetric(float64(mean.Milliseconds()), "ms/reset")
			for stage, took := range stages {
				b.ReportMetric(float64(took.Milliseconds())/float64(n), "ms/"+stage)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// split is how long each stage of a reset ran, from what systemd says of its start and its end.
func split(b *testing.B, g *ground.Ground, since string) map[string]time.Duration {
	b.Helper()
	const starting, started = "7d4958e842da4a758f6c1cdc7b36dcc5", "39f53479d3a045ac8e11786248231fbf"
	lines := g.MustRun(b, "journalctl -b -o json --since @"+since+" _PID=1 MESSAGE_ID="+starting+" MESSAGE_ID="+started)
	began := map[string]time.Duration{}
	stages := map[string]time.Duration{}
	for _, line := range host.Lines(lines) {
		var entry struct {
			Unit string `json:"UNIT"`
			ID   string `json:"MESSAGE_ID"`
			At   string `json:"__MONOTONIC_TIMESTAMP"`
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			b.Fatal(err)
		}
		stage, found := strings.CutPrefix(strings.TrimSuffix(entry.Unit, ".service"), "unbounded-reset-")
		if !found {
			continue
		}
		usec, err := strconv.ParseInt(entry.At, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		at := time.Duration(usec) * time.Microsecond
		if entry.ID == starting {
			began[stage] = at
		} else {
			stages[stage] = at - began[stage]
		}
	}
	if len(stages) == 0 {
		b.Fatal("the journal tells of no stage")
	}
	return stages
}
