//go:build cluster

// Package bench measures what an operator waits for: a retry on an unchanged host, a start
// on a complete one, and what the bootstrap costs a healthy boot.
package bench

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

const reinstall = `sed -i 's/"phase": "complete"/"phase": "installing"/' ` + paths.Record + ` && rm -f ` + paths.Complete

// stages is how many oneshots the target starts: the yardstick starts as many that do nothing.
const stages = 12

func yardstick() map[string]host.File {
	files := map[string]host.File{
		paths.SystemdDir + "/never.service": {Content: "[Unit]\nConditionPathExists=/never\n[Service]\nType=exec\nExecStart=/bin/true\n"},
	}
	target := "[Unit]\nStopWhenUnneeded=yes\n"
	before := ""
	for i := range stages {
		name := "empty" + strconv.Itoa(i) + ".service"
		unit := "[Unit]\n"
		if before != "" {
			unit += "Requires=" + before + "\nAfter=" + before + "\n"
		}
		files[paths.SystemdDir+"/"+name] = host.File{Content: unit + "[Service]\nType=oneshot\nExecStart=/bin/true\n"}
		target += "Requires=" + name + "\nAfter=" + name + "\n"
		before = name
	}
	files[paths.SystemdDir+"/empty.target"] = host.File{Content: target}
	return files
}

// start is how long systemctl start takes inside the host, without the way there.
func start(b *testing.B, g *ground.Ground, unit string) time.Duration {
	b.Helper()
	out := g.MustRun(b, `s=$(date +%s%N); systemctl start `+unit+` || exit 1; echo $(( $(date +%s%N) - s ))`)
	nanoseconds, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(nanoseconds)
}

// measure reports the mean of a unit's start beside the mean of a yardstick's, taken in turn.
func measure(b *testing.B, g *ground.Ground, unit, stick string, prepare func()) {
	b.Helper()
	var ours, theirs time.Duration
	n := 0
	for b.Loop() {
		prepare()
		ours += start(b, g, unit)
		theirs += start(b, g, stick)
		n++
	}
	b.ReportMetric(float64(ours.Milliseconds())/float64(n), "ms/start")
	b.ReportMetric(float64(theirs.Milliseconds())/float64(n), "ms/yardstick")
	b.ReportMetric(float64(ours)/float64(theirs), "ratio")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkStart(b *testing.B) {
	for _, release := range []string{"bookworm", "trixie"} {
		b.Run(release, func(b *testing.B) {
			g := ground.Boot(b, ground.Options{Host: host.Options{Release: release, Overlay: yardstick()}})
			g.MustRun(b, "systemctl start "+paths.Target)
			g.Cluster.AwaitReady(b, ground.NodeName, 2*time.Minute)
			b.Run("unchanged-retry", func(b *testing.B) {
				measure(b, g, paths.Target, "empty.target", func() { g.MustRun(b, reinstall) })
			})
			b.Run("complete-host", func(b *testing.B) {
				measure(b, g, paths.Target, "empty.target", func() {})
			})
			b.Run("healthy-boot", func(b *testing.B) {
				measure(b, g, paths.BootUnit, "never.service", func() {})
			})
		})
	}
}
