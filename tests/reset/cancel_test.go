//go:build cluster || fault

package reset

import (
	"strings"
	"testing"

	"unbounded/internal/paths"
	"unbounded/tests/compare"
	"unbounded/tests/ground"
	"unbounded/tests/serve"
)

// held keeps a stage at work, with the lock that it holds then.
const held = "[Service]\nExecStart=\nExecStart=+/usr/bin/flock -s " + paths.Lock + " /bin/sleep 1000\n"

// A reset cancels what it finds at work, whichever stage that is and whoever started it, and nothing of the
// bootstrap starts after that.
func TestCancel(t *testing.T) {
	g := boot(t, "trixie")
	before := compare.Take(t, g.Host)
	stages := []string{paths.AdmitUnit, paths.NftablesUnit, paths.JoinUnit("kube1")}
	if full {
		stages = paths.StageUnits("kube1")
	}
	since := now(t, g)
	for _, unit := range stages {
		t.Run(unit, func(t *testing.T) {
			undo := dropIn(t, g, unit, held)
			g.MustRun(t, "systemctl enable --now "+paths.BootUnit)
			g.Await(t, waitLimit, "test $(systemctl show -P ActiveState "+unit+") = activating && ! flock -xn "+paths.Lock+" true")
			resets(t, g)
			silent(t, g, since)
			undo()
		})
	}
	t.Run("a pull that is slow", func(t *testing.T) {
		g.Registry.Fail("blobs", -1, serve.Hang())
		g.MustRun(t, "systemctl start --no-block "+paths.Target)
		g.Await(t, waitLimit, "systemctl show -P StatusText "+paths.RootfsUnit("kube1")+" | grep -q .")
		resets(t, g)
		silent(t, g, since)
		g.Registry.Heal()
	})
	t.Run("between two attempts", func(t *testing.T) {
		undo := dropIn(t, g, paths.PreflightUnit, "[Service]\nExecStart=\nExecStart=/bin/false\n")
		g.MustRun(t, "systemctl enable --now "+paths.BootUnit)
		g.Await(t, waitLimit, "systemctl show -P StatusText "+paths.BootUnit+" | grep 'attempt 1 failed'")
		resets(t, g)
		undo()
	})
	if started := g.Run(t, "journalctl -b -o cat _PID=1 --since @"+now(t, g)+" | grep 'Starting unbounded-'"); started.Out != "" {
		t.Errorf("after the resets there was:\n%s", started.Out)
	}
	same(t, g, "after the resets", before)
}

// Somebody starts the bootstrap while a reset runs, or after one has failed: he is refused and told how to go on,
// and the reset goes on to its end.
func TestStartMeanwhile(t *testing.T) {
	g := boot(t, "bookworm")
	before := compare.Take(t, g.Host)
	must(t, g, "systemctl start "+paths.NodeUnit("kube1"))
	undo := dropIn(t, g, paths.ResetTreesUnit, "[Service]\nExecStartPre=/bin/false\n")
	if result := g.Run(t, reset); result.Code == 0 {
		t.Fatal("the reset succeeded")
	}
	if got := phase(t, g); got != "resetting" {
		t.Errorf("phase %q, want resetting", got)
	}
	refused(t, g, 78)
	g.MustRun(t, "systemctl start "+paths.BootUnit)
	g.Await(t, waitLimit, "systemctl is-failed "+paths.BootUnit)
	if got := strings.TrimSpace(g.MustRun(t, "systemctl show -P ExecMainStatus "+paths.BootUnit)); got != "78" {
		t.Errorf("%s ended with %s, want 78", paths.BootUnit, got)
	}
	undo()

	for _, row := range []struct {
		name, unit, hold string
		status           int
	}{
		{"between two stages", paths.ResetTreesUnit, "[Service]\nExecStartPre=/bin/sh -c 'until test -e /run/go-on; do sleep 0.1; done'\n", 78},
		{"while one holds the lock", paths.ResetReleaseUnit, "[Service]\nExecStartPre=+/usr/bin/flock -x " + paths.Lock + " /bin/sh -c 'until test -e /run/go-on; do sleep 0.1; done'\n", 75},
	} {
		t.Run(row.name, func(t *testing.T) {
			undo := dropIn(t, g, row.unit, row.hold)
			g.MustRun(t, "rm -f /run/go-on; systemctl start --no-block "+paths.ResetTarget)
			g.Await(t, waitLimit, "test $(systemctl show -P ActiveState "+row.unit+") = activating")
			if row.status == 75 {
				g.Await(t, waitLimit, "! flock -xn "+paths.Lock+" true")
			}
			refused(t, g, row.status)
			g.MustRun(t, "touch /run/go-on")
			idle(t, g)
			// What the refused start has left is its own.
			g.MustRun(t, "rm -f /run/go-on "+paths.LastFailure+"; systemctl reset-failed "+paths.AdmitUnit)
			over(t, g)
			undo()
			same(t, g, "after a reset with a start in it", before)
			must(t, g, "systemctl start "+paths.KernelUnit)
		})
	}
	resets(t, g)
}

// An operator starts a reset again while it runs: both end well, and so does the host.
func TestResetStartedTwice(t *testing.T) {
	g := boot(t, "trixie")
	before := compare.Take(t, g.Host)
	for _, stage := range []string{"machines", "release"} {
		if stage == "machines" && !full {
			continue
		}
		t.Run(stage, func(t *testing.T) {
			must(t, g, "systemctl start "+paths.NetworkUnit)
			unit := "unbounded-reset-" + stage + ".service"
			undo := dropIn(t, g, unit, "[Service]\nExecStartPre=+/usr/bin/flock -x "+paths.Lock+" /bin/sh -c 'until test -e /run/go-on; do sleep 0.1; done'\n")
			g.MustRun(t, "systemctl start --no-block "+paths.ResetTarget)
			g.Await(t, waitLimit, "test $(systemctl show -P ActiveState "+unit+") = activating && ! flock -xn "+paths.Lock+" true")
			must(t, g, "(sleep 1; touch /run/go-on) & "+reset)
			idle(t, g)
			g.MustRun(t, "rm /run/go-on")
			undo()
			over(t, g)
			same(t, g, "after a reset that was started twice", before)
			g.Run(t, reset)
		})
	}
}

// refused starts the bootstrap, which has to be refused, with that status and a way to go on.
func refused(t *testing.T, g *ground.Ground, status int) {
	t.Helper()
	if result := g.Run(t, start); result.Code == 0 {
		t.Fatalf("the start succeeded\n%s", journal(t, g))
	}
	f := lastFailure(t, g)
	if f.Unit != paths.AdmitUnit || f.Status != status {
		t.Errorf("the last failure is %d of %s, want %d of %s: %s", f.Status, f.Unit, status, paths.AdmitUnit, f.Cause)
	}
	if !strings.Contains(f.Cause, "reset") {
		t.Errorf("cause %q does not tell of the reset", f.Cause)
	}
}

// silent holds the handler of failures to saying nothing of stages that were cancelled.
func silent(t *testing.T, g *ground.Ground, since string) {
	t.Helper()
	g.MustRun(t, "journalctl --sync")
	if said := g.MustRun(t, "journalctl -b -o short --no-hostname -p warning --since @"+since+" SYSLOG_IDENTIFIER=unbounded-failed"); strings.Contains(said, "unbounded-failed") {
		t.Errorf("of a cancelled stage it was said:\n%s", said)
	}
	if g.Exists(t, paths.LastFailure) {
		t.Errorf("a cancelled stage is told of as a failure:\n%s", g.ReadFile(t, paths.LastFailure))
	}
}

func now(t *testing.T, g *ground.Ground) string {
	t.Helper()
	return strings.TrimSpace(g.MustRun(t, "date +%s.%N"))
}
