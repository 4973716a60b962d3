package systemd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// Results of jobs that callers compare; systemd has more.
const (
	ResultDone       = "done"
	ResultCanceled   = "canceled"
	ResultFailed     = "failed"
	ResultDependency = "dependency"
	// ResultUnknown is ours: the connection was lost, and the unit does not show how its job ended.
	ResultUnknown = "unknown"
)

// JobError says how a job ended that did not do what was asked. Unit is the state after it.
type JobError struct {
	Verb   string // start, stop, restart
	Name   string // of the unit
	Result string // of the job
	Unit   Properties

	begun bool // the unit was started, by this job or by one that it joined
}

// Error is one line: what was asked, how it ended, and what the unit itself says.
func (e *JobError) Error() string {
	var says []string
	if e.Unit.Result != "" && e.Unit.Result != "success" {
		says = append(says, e.Unit.Result)
	}
	switch {
	case e.Unit.ExecMainStatus == 0:
	case e.Unit.ExecMainCode == 1:
		says = append(says, fmt.Sprintf("exit status %d", e.Unit.ExecMainStatus))
	default:
		says = append(says, fmt.Sprintf("signal %d", e.Unit.ExecMainStatus))
	}
	if e.Unit.LoadState != "" && e.Unit.LoadState != "loaded" {
		says = append(says, "unit is "+e.Unit.LoadState)
	}
	if e.Unit.StatusText != "" {
		says = append(says, fmt.Sprintf("status %q", e.Unit.StatusText))
	}
	text := fmt.Sprintf("%s %s: job result %s", e.Verb, e.Name, e.Result)
	if len(says) == 0 {
		return text
	}
	return text + " (" + strings.Join(says, ", ") + ")"
}

// Start starts unit and waits until its job has ended. The returned properties are those at that
// moment, with the results of a oneshot that has finished: an unmet condition is no error, it shows in
// ConditionResult. A job that did not succeed is a *JobError; ErrNoUnit and ErrMasked are in the
// chain where they apply. When ctx ends the wait ends; the job goes on.
func (m *Manager) Start(ctx context.Context, unit string) (Properties, error) {
	for again := startAgain; ; again-- {
		p, err := m.job(ctx, "start", unit, (*sd.Conn).StartUnitContext)
		if again == 0 || !unbegun(err, ResultFailed) {
			return p, err
		}
	}
}

// startAgain bounds how often a start that a reload swallows is asked for again.
const startAgain = 5

// unbegun tells whether err is of a job that ended with one of results before it did anything: a reload or a re-exec
// of the manager ends a job that is between stopping and starting a unit, and reports it failed (measured, 252).
func unbegun(err error, results ...string) bool {
	job, ok := errors.AsType[*JobError](err)
	return ok && !job.begun && slices.Contains(results, job.Result) && job.Unit.Result != "start-limit-hit"
}

// Stop is Start for stopping. A unit that is not loaded is stopped.
func (m *Manager) Stop(ctx context.Context, unit string) (Properties, error) {
	return m.job(ctx, "stop", unit, (*sd.Conn).StopUnitContext)
}

// Restart is Start for restarting; a unit that does not run is started.
func (m *Manager) Restart(ctx context.Context, unit string) (Properties, error) {
	p, err := m.job(ctx, "restart", unit, (*sd.Conn).RestartUnitContext)
	if unbegun(err, ResultFailed, ResultUnknown) {
		return m.Start(ctx, unit)
	}
	return p, err
}

type request func(conn *sd.Conn, ctx context.Context, unit, mode string, results chan<- string) (int, error)

func (m *Manager) job(ctx context.Context, verb, unit string, ask request) (Properties, error) {
	before, err := m.Properties(ctx, unit)
	if err != nil {
		return Properties{}, err
	}
	var id int
	var results chan string
	held := holder{unit: unit}
	defer held.release(ctx)
	err = m.do(ctx, func(ctx context.Context, s *session) (err error) {
		held.on(ctx, s)
		// Buffered: the library cannot handle other jobs while nobody takes a result.
		results = make(chan string, 1)
		id, err = ask(s.units, ctx, unit, "replace", results)
		return err
	})
	if verb == "stop" && errors.Is(err, ErrNoUnit) {
		return before, nil
	}
	if err != nil {
		return before, fmt.Errorf("%s %s: %w", verb, unit, err)
	}
	result, err := m.wait(ctx, &held, uint32(id), results)
	if err != nil {
		return before, fmt.Errorf("%s %s: wait: %w", verb, unit, err)
	}
	after, err := m.Properties(ctx, unit)
	if err != nil {
		return before, err
	}
	if result == ResultUnknown {
		result = infer(verb, before, after)
	}
	if result != ResultDone {
		// A start of what is starting already joins that one.
		begun := after.InvocationID != before.InvocationID || verb == "start" && before.ActiveState == "activating"
		return after, &JobError{Verb: verb, Name: unit, Result: result, Unit: after, begun: begun}
	}
	return after, nil
}

// wait returns the result of job id. The signal may never come (the bus was restarted, systemd
// closed its own socket in a re-exec), so the unit is asked again and again whether it still has the job.
func (m *Manager) wait(ctx context.Context, held *holder, id uint32, results <-chan string) (string, error) {
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for missed := false; ; {
		select {
		case result := <-results:
			return result, nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-tick.C:
		}
		err := m.do(ctx, func(ctx context.Context, s *session) error {
			held.on(ctx, s)
			return nil
		})
		if err != nil {
			return "", err
		}
		now, err := m.Properties(ctx, held.unit)
		switch {
		case err != nil:
			return "", err
		case now.Job == id:
			missed = false
		case missed: // gone since the last tick, and still no signal
			return ResultUnknown, nil
		default:
			missed = true
		}
	}
}

// infer is the result of a job that nobody told us, read off the unit before and after it.
func infer(verb string, before, after Properties) string {
	if verb == "stop" {
		if after.ActiveState == "inactive" || after.ActiveState == "failed" {
			return ResultDone
		}
		return ResultUnknown
	}
	switch after.ActiveState {
	case "active", "reloading":
		return ResultDone
	case "failed", "activating", "deactivating": // activating without a job: it failed and waits for its restart
		return ResultFailed
	}
	switch {
	case after.conditionsAt > before.conditionsAt && !after.ConditionResult:
		return ResultDone
	case after.InvocationID == "" || after.InvocationID == before.InvocationID:
		return ResultUnknown // never started, or forgotten since
	case after.Result == "success" || after.Result == "": // a target has no result, and has begun only if it was reached
		return ResultDone
	}
	return ResultFailed
}

// holder keeps a unit loaded, so that the results of a oneshot outlast it. A reference lives as long as
// its connection. systemd's own socket and units that cannot be loaded refuse it: then those results
// are lost, no more, so errors are ignored.
type holder struct {
	unit string
	by   *session
}

// on refers to the unit on s, once.
func (h *holder) on(ctx context.Context, s *session) {
	if h.by != s {
		h.by = s
		_ = s.manager(ctx, "RefUnit", h.unit).Err
	}
}

// releaseLimit is how long the end of a reference is waited for.
const releaseLimit = 2 * time.Second

// release waits for the answer, for a moment: godbus never answers a call without a reply when
// the connection closes meanwhile.
func (h *holder) release(ctx context.Context) {
	if h.by == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer cancel()
	_ = h.by.manager(ctx, "UnrefUnit", h.unit).Err // the reference ends with the connection, if not before
}

// manager calls a method of the manager that the library does not have.
func (s *session) manager(ctx context.Context, method string, args ...any) *dbus.Call {
	object := s.calls.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	return object.CallWithContext(ctx, "org.freedesktop.systemd1.Manager."+method, 0, args...)
}
