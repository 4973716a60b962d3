//go:build vm

package vm_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/tests/vm"
)

// How many cuts there are of each kind: UNBOUNDED_FAULT=full makes all.
const (
	sampleStarts, sampleResets = 2, 1
	fullStarts, fullResets     = 20, 20
)

// chain is the most cuts in a row before something is run to its end.
const chain = 4

func full() bool { return os.Getenv("UNBOUNDED_FAULT") == "full" }

// TestPowerCuts takes the power from a machine at random moments of a start, and of a reset. After each cut the
// record parses or is absent, and what is done next goes on from what the disk has: it is cut again, or ends where
// an undisturbed one does. UNBOUNDED_SEED repeats the moments of a run, as far as the machine is as fast.
func TestPowerCuts(t *testing.T) {
	starts, resets := sampleStarts, sampleResets
	if full() {
		starts, resets = fullStarts, fullResets
	}
	c := &cutter{VM: vm.Boot(t, vm.Options{StandIn: true}), random: seeded(t)}

	clean := c.look(t)
	c.Freeze(t, "clean")
	c.Thaw(t, "clean")
	start := c.calm(t, paths.Target)
	node := c.look(t)
	c.Freeze(t, "node")
	if t.Run("bootstrap", func(t *testing.T) {
		c.cuts(t, work{target: paths.Target, from: "clean", takes: start, times: starts, want: node, phase: record.Complete})
	}) {
		c.Thaw(t, "node")
		reset := c.calm(t, paths.ResetTarget)
		same(t, "undisturbed", clean, c.look(t))
		c.Cut(t)
		t.Run("reset", func(t *testing.T) {
			c.cuts(t, work{target: paths.ResetTarget, from: "node", takes: reset, times: resets, want: clean})
		})
	}
}

// seeded gives the moments of a run.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("UNBOUNDED_SEED"), strconv.FormatUint(rand.Uint64(), 10)), 10, 64)
	if err != nil {
		t.Fatalf("UNBOUNDED_SEED: %v", err)
	}
	t.Logf("UNBOUNDED_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// cutter is a machine whose power is cut.
type cutter struct {
	*vm.VM

	random *rand.Rand
}

// work is what is cut.
type work struct {
	target string
	from   string // the frozen machine that it begins with
	takes  time.Duration
	times  int
	want   []string     // what the machine is at the end
	phase  record.Phase // and what its record says; empty: there is none
}

// calm starts a target that nobody disturbs.
func (c *cutter) calm(t *testing.T, target string) time.Duration {
	t.Helper()
	result := c.Run(t, "systemctl start "+target)
	if result.Code != 0 {
		t.Fatalf("start %s = %d\n%s\n%s", target, result.Code, result.Err, c.journal(t))
	}
	t.Logf("%s ends after %v", target, result.Took.Round(100*time.Millisecond))
	return result.Took
}

// cuts cuts the power so many times, a few in a row, and has each row converge.
func (c *cutter) cuts(t *testing.T, w work) {
	done, late := 0, 0
	// What is begun again has less to do, and this machine is not as fast at all times.
	first, again := w.takes, w.takes
	for done < w.times {
		c.Thaw(t, w.from)
		within := &first
		for range min(1+c.random.IntN(chain), w.times-done) {
			if took, ended := c.cut(t, w.target, *within); ended {
				late++
				*within = took
			} else {
				done++
			}
			within = &again
			c.On(t)
			t.Logf("cut %d of %d: after the boot the record says %q", done, w.times, c.phase(t))
		}
		c.calm(t, w.target)
		if got := c.phase(t); got != w.phase {
			t.Errorf("at the end the record says %q, want %q", got, w.phase)
		}
		same(t, "at the end", w.want, c.look(t))
		c.Cut(t)
		if t.Failed() {
			break
		}
	}
	report(t, fmt.Sprintf("%d power cuts in %s, %d right after its end; all converged: %v", done, w.target, late, !t.Failed()))
}

// report logs a line, and adds it to the file that the fault ground writes its counts to.
func report(t *testing.T, line string) {
	t.Helper()
	t.Log(line)
	path := os.Getenv("UNBOUNDED_FAULT_REPORT")
	if path == "" {
		return
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(file, line)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Errorf("report: %v", err)
	}
}

// cut starts the target and cuts the power at a random moment of what it takes. A target that ended before that tells
// how long it took.
func (c *cutter) cut(t *testing.T, target string, within time.Duration) (took time.Duration, late bool) {
	t.Helper()
	after := time.Duration(c.random.Int64N(int64(within)))
	ended := c.Begin(t, "systemctl start "+target)
	// The moment itself is what is random here.
	select {
	case <-time.After(after):
	case result := <-ended:
		if result.Code != 0 {
			t.Fatalf("start %s = %d before the cut\n%s\n%s", target, result.Code, result.Err, c.journal(t))
		}
		c.Cut(t)
		t.Logf("%s ended before the cut, which comes right after it", target)
		return result.Took, true
	}
	c.Cut(t)
	t.Logf("power cut %v after the start of %s", after.Round(time.Millisecond), target)
	return 0, false
}

// phase is what the record says.
func (c *cutter) phase(t *testing.T) record.Phase {
	t.Helper()
	return c.record(t).Phase
}

// record is the record, which has to be valid if there is one.
func (c *cutter) record(t *testing.T) record.Record {
	t.Helper()
	text := c.MustRun(t, "if test -e "+paths.Record+"; then cat "+paths.Record+"; else echo none; fi")
	if text == "none\n" {
		return record.Record{}
	}
	r, err := record.Parse([]byte(text))
	if err != nil {
		t.Errorf("the record: %v\n%q", err, text)
	}
	return r
}

func (c *cutter) journal(t *testing.T) string {
	t.Helper()
	return c.Run(t, "journalctl -b -o short-monotonic --no-hostname -u 'unbounded-*' | tail -n 60").Out
}

// ours are the files whose content is another each time: ids, keys, times.
var ours = []string{
	paths.Record, paths.Before + "/*", paths.Tree("kube1") + "/etc/machine-id", paths.Tree("kube1") + "/etc/unbounded/image.json",
}

// unseen are the folders in which something changes on a machine where nobody does anything, or lies what no cut can reach.
var unseen = []string{
	"/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/var/log", "/var/cache", "/var/lib/systemd", "/lost+found", "/usr/lib/modules",
	paths.Tree("kube1") + "/tmp", paths.Tree("kube1") + "/var/tmp", paths.Tree("kube1") + "/var/log", paths.Tree("kube1") + "/var/lib/systemd",
	paths.Tree("kube1") + "/var/cache", paths.Tree("kube1") + "/run",
}

// look is what matters of the machine: every file with its owner, mode and content, which units start by
// themselves, and what its network is.
func (c *cutter) look(t *testing.T) []string {
	t.Helper()
	paths := func(list []string) string { return `\( -path '` + strings.Join(list, `' -o -path '`) + `' \)` }
	lines := strings.Split(c.MustRun(t, fmt.Sprintf(`set -e; export LC_ALL=C
		find / -xdev -ignore_readdir_race %[1]s -prune -o -printf 'file %%p %%#m %%U:%%G %%l\n'
		find / -xdev -ignore_readdir_race %[1]s -prune -o %[2]s -prune -o -path /usr -prune -o -type f -print0 | xargs -0 sha256sum
		systemctl list-unit-files --no-legend --full | awk '{ print "unit", $1, $2 }'
		ip -o link show | awk '{ print "link", $2 }'
		for family in -4 -6; do ip $family rule show; ip $family route show table all proto static; done
		nft list tables
		cat /proc/swaps`, paths(unseen), paths(ours))), "\n")
	slices.Sort(lines)
	return lines
}

// same holds a machine to being what it was.
func same(t *testing.T, when string, want, got []string) {
	t.Helper()
	var lines []string
	for _, line := range want {
		if _, found := slices.BinarySearch(got, line); !found {
			lines = append(lines, "- "+line)
		}
	}
	for _, line := range got {
		if _, found := slices.BinarySearch(want, line); !found {
			lines = append(lines, "+ "+line)
		}
	}
	if len(lines) > 0 {
		const enough = 60
		t.Errorf("%s, %d differences:\n%s", when, len(lines), strings.Join(lines[:min(enough, len(lines))], "\n"))
	}
}
