//go:build host || fault

package fault

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"unbounded/internal/failure"
	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/tests/host"
)

// canary is in every secret of the configurations here.
const canary = "canary"

// runLimit bounds one run of a helper.
const runLimit = 2 * time.Minute

// row is a line of the table.
type row struct {
	helper string
	verb   []string // default converge
	what   string   // which start, where a verb has several

	// setup brings the host where the helper is to be run. The files that it leaves are the row's start.
	setup   func(t *testing.T, s *scene)
	aspects []aspect // what is not in files
	roots   []string // folders that the helper may change
	between []string // globs of files that have states between the first and the last
	loose   []string // globs of files of which only matters that they are there: they tell of handles, say
	newID   bool     // the record gets a random id
	// next are the programs of the next plain run, where they are not the helper itself.
	next     [][]string
	statuses []int // exit statuses that a fault may have besides 0 and 1
	killOnly bool  // there is nothing on a disk
	sample   int   // points of each kind in a sample; default 4
}

func (r row) name() string {
	return strings.TrimSpace(r.helper + " " + strings.Join(r.verb, " ") + " " + r.what)
}

// result is what came of a row.
type result struct {
	name               string
	calls, points, bad int
	took               time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("fault: %s: %d calls, %d points, %d exceptions, %.1f s", r.name, r.calls, r.points, r.bad, r.took.Seconds())
}

// faults are what happens at a point.
func faults() []string { return []string{"kill", "EIO", "ENOSPC", "EDQUOT", "EROFS"} }

// wantedKind tells it of a fault.
func wantedKind(fault string) bool {
	return regexp.MustCompile(os.Getenv("UNBOUNDED_FAULT_KIND")).MatchString(fault)
}

// report is what the injector says.
type report struct {
	Calls int    `json:"calls"`
	Fired bool   `json:"fired"`
	Call  string `json:"call"`
	Exit  int    `json:"exit"`
}

const injectPath = "/opt/fault/inject"

// injector builds the program that injects.
func injector(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "inject")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./inject")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the injector: %v\n%s", err, out)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// scene is a host on which rows are run, one after the other.
type scene struct {
	*host.Host
	ca   authority // of the API server
	base picture   // of everything, when the host was fresh and admitted
	all  []string
}

// world is a view of some of its folders.
func (s *scene) world(roots []string) *world {
	return &world{root: fmt.Sprintf("/proc/%d/root", s.Leader()), roots: roots, known: map[identity]file{}}
}

// program is the path of a helper on the host.
func program(helper string) string { return paths.DefaultRoot + "/current/unbounded-" + helper }

// end is how a run ended.
type end struct {
	report
	output string
}

// run runs a program of the host under the injector.
func (s *scene) run(t *testing.T, args []string, injection ...string) (e end) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	command := s.Command(ctx, slices.Concat([]string{injectPath}, injection, []string{"--"}, args)...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	began := time.Now()
	err := command.Run()
	e = end{output: strings.TrimSpace(errs.String())}
	defer func() {
		if e.Exit != 0 {
			e.output += s.cause()
		}
	}()
	if json.Unmarshal(out.Bytes(), &e.report) != nil {
		e.Exit = -1
		e.output = fmt.Sprintf("no report after %v: %v %s %s", time.Since(began), err, &out, e.output)
	}
	return e
}

// aspect is state of a host that is not in its files.
type aspect interface {
	// look tells how it is.
	look(t *testing.T, s *scene) string
	// set makes it as it was when look told was; now is what it tells. Files are as they were by then.
	set(t *testing.T, s *scene, was, now string)
}

// cause is what the last failure says. The journal has it too, but is slower to ask.
func (s *scene) cause() string {
	f, err := failure.Read(fmt.Sprintf("/proc/%d/root", s.Leader()))
	if err != nil {
		return ""
	}
	return f.Cause
}

// runner runs the points of one row.
type runner struct {
	row
	s                 *scene
	w                 *world
	args              []string
	raw               picture // the start, to put it back
	start, want       picture // to compare with
	startState, state []string
	result            result
}

// runRow runs a row and gives its result.
func runRow(t *testing.T, s *scene, r row) result {
	t.Helper()
	began := time.Now()
	if len(r.verb) == 0 {
		r.verb = []string{"converge"}
	}
	if len(r.roots) == 0 {
		r.roots = []string{"/etc", "/var/lib/unbounded", "/run/unbounded"}
	}
	x := &runner{row: r, s: s, w: s.world(r.roots), args: append([]string{program(r.helper)}, r.verb...)}
	x.result.name = r.name()
	s.reset(t)
	if r.setup != nil {
		r.setup(t, s)
	}
	var err error
	if x.raw, err = x.w.take(); err != nil {
		t.Fatal(err)
	}
	x.start, x.startState = x.take(t), x.look(t)
	// An undisturbed run, which is counted, and one more that changes nothing.
	calm := s.run(t, x.args)
	if calm.Exit != 0 || calm.Calls == 0 {
		t.Fatalf("%s, undisturbed: exit %d after %d calls\n%s", r.name(), calm.Exit, calm.Calls, calm.output)
	}
	x.want, x.state = x.take(t), x.look(t)
	x.again(t)
	x.putBack(t)
	files := s.run(t, x.args, "--do", "EIO")
	x.result.calls = calm.Calls
	if diff := x.differs(t); len(diff) > 0 {
		t.Fatalf("%s: two undisturbed runs end differently:\n%s", r.name(), strings.Join(diff, "\n"))
	}
	for _, fault := range faults() {
		calls := calm.Calls
		if fault != "kill" {
			calls = files.Calls
			if r.killOnly {
				continue
			}
		}
		if !wantedKind(fault) {
			continue
		}
		x.points(t, fault, calls)
	}
	x.putBack(t) // also what is not in files: the next row starts from there
	x.result.took = time.Since(began)
	t.Log(x.result)
	return x.result
}

// again runs the helper once more. The verbs of reset find nothing to do, those of the bootstrap nothing to change.
func (x *runner) again(t *testing.T) {
	t.Helper()
	if got := x.plain(t); got.Exit != 0 {
		t.Errorf("%s: the second run ends with %d: %s", x.name(), got.Exit, got.output)
	}
	if diff := x.differs(t); len(diff) > 0 {
		t.Errorf("%s: the second run changed:\n%s", x.name(), strings.Join(diff, "\n"))
	}
}

// plain is the next run.
func (x *runner) plain(t *testing.T) (e end) {
	t.Helper()
	if len(x.next) == 0 {
		return x.s.run(t, x.args)
	}
	for _, args := range x.next {
		if e = x.s.run(t, append([]string{program(args[0])}, args[1:]...)); e.Exit != 0 {
			break
		}
	}
	return e
}

// points are all points of one fault, or a sample.
func (x *runner) points(t *testing.T, fault string, calls int) {
	t.Helper()
	if !full {
		for _, at := range sampled(calls, cmp.Or(x.sample, 4)) {
			x.point(t, fault, at)
		}
		return
	}
	const endless = 20000
	for at := 1; at < endless; at++ {
		if !x.point(t, fault, at) {
			return
		}
	}
}

// sampled are n numbers of 1 to calls, one of each part of it.
func sampled(calls, n int) []int {
	var all []int
	for i := range min(n, calls) {
		from, to := 1+i*calls/n, 1+(i+1)*calls/n
		if n > calls {
			from, to = i+1, i+2
		}
		all = append(all, from+rand.IntN(max(1, to-from)))
	}
	return all
}

// point runs the helper with one fault, looks at what that left, and runs it plainly. It tells whether
// the helper came to that point at all.
func (x *runner) point(t *testing.T, fault string, at int) bool {
	t.Helper()
	x.putBack(t)
	got := x.s.run(t, x.args, "--do", fault, "--at", fmt.Sprint(at))
	if !got.Fired && got.Exit == 0 {
		return false // it has ended before
	}
	x.result.points++
	where := fmt.Sprintf("%s: %s at %d (%s)", x.name(), fault, at, got.Call)
	complain := func(format string, args ...any) {
		x.result.bad++
		t.Errorf("%s: %s", where, fmt.Sprintf(format, args...))
	}
	if problem := x.ended(t, fault, got); problem != "" {
		complain("%s", problem)
	}
	if strings.Contains(got.output, canary) {
		complain("a secret is in the output: %s", got.output)
	}
	left := x.take(t)
	if _, err := record.Open(x.w.root).Load(); err != nil && !errors.Is(err, record.ErrNone) && !left[paths.Record].same(x.start[paths.Record]) {
		complain("the record: %v", err)
	}
	if lines := halves(x.start, x.want, left, x.between); len(lines) > 0 {
		complain("%s", strings.Join(lines, "\n"))
	}
	if next := x.plain(t); next.Exit != 0 {
		complain("the next plain run ends with %d: %s", next.Exit, next.output)
	}
	if diff := x.differs(t); len(diff) > 0 {
		complain("the next plain run ends elsewhere:\n%s", strings.Join(diff, "\n"))
	}
	if x.result.bad > 40 {
		t.Fatalf("%s: too many exceptions", x.name())
	}
	return true
}

// ended says what is wrong with how a disturbed run has ended.
func (x *runner) ended(t *testing.T, fault string, got end) string {
	t.Helper()
	switch {
	case fault == "kill" && got.Exit == 137, got.Exit == 1, slices.Contains(x.statuses, got.Exit):
		return ""
	case fault == "kill" || got.Exit != 0:
		return fmt.Sprintf("exit %d: %s", got.Exit, got.output)
	}
	if diff := x.differs(t); len(diff) > 0 {
		return "exit 0, but not done:\n" + strings.Join(diff, "\n")
	}
	return ""
}

func (x *runner) take(t *testing.T) picture {
	t.Helper()
	p, err := x.w.take()
	if err != nil {
		t.Fatal(err)
	}
	if x.newID {
		p = withoutID(p)
	}
	return loosen(p, x.loose)
}

func (x *runner) look(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, a := range x.aspects {
		all = append(all, a.look(t, x.s))
	}
	return all
}

// differs says how the host differs from where an undisturbed run ends.
func (x *runner) differs(t *testing.T) []string {
	t.Helper()
	lines := differences(x.want, x.take(t))
	for i, state := range x.look(t) {
		if state != x.state[i] {
			lines = append(lines, gocmp.Diff(x.state[i], state))
		}
	}
	return lines
}

func (x *runner) putBack(t *testing.T) {
	t.Helper()
	if err := x.w.put(x.raw); err != nil {
		t.Fatalf("put the host back: %v", err)
	}
	for i, a := range x.aspects {
		if now := a.look(t, x.s); now != x.startState[i] || now == "" {
			a.set(t, x.s, x.startState[i], now)
		}
	}
}

// reset puts all files back as they were when the host was fresh.
func (s *scene) reset(t *testing.T) {
	t.Helper()
	if err := s.world(s.all).put(s.base); err != nil {
		t.Fatalf("reset the host: %v", err)
	}
	s.MustRun(t, "systemctl daemon-reload")
}
