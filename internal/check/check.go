// Package check runs named checks side by side and reports what they found, as text and as JSON.
//
// Names, severities and the JSON document are those of the public agent's preflight,
// with a remedy added. Results carry no secret and no reference with a signature.
package check

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Severity says how bad a result is.
type Severity string

// The severities.
const (
	OK      Severity = "ok"
	Warning Severity = "warning"
	Error   Severity = "error"
)

// Retry says what another try, with nothing changed by anybody, can do about an error.
type Retry int

// The answers.
const (
	May   Retry = iota // it may help later: the operator has to change something on the host or elsewhere
	Waits              // waiting helps: the network, a server
	Never              // it cannot: the configuration or the identity is wrong
)

// Result is what one check says about one target.
type Result struct {
	Name     string   `json:"name"`
	Target   string   `json:"target"`
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	Remedy   string   `json:"remedy,omitempty"`
	Ignored  bool     `json:"ignored"`

	retry Retry
}

// Pass is a result that is well.
func Pass(target, format string, args ...any) Result {
	return Result{Target: target, Severity: OK, Message: fmt.Sprintf(format, args...)}
}

// Warn is a result that does not keep the host from becoming a node.
func Warn(target, format string, args ...any) Result {
	return Result{Target: target, Severity: Warning, Message: fmt.Sprintf(format, args...)}
}

// Fail is a result that does.
func Fail(retry Retry, target, format string, args ...any) Result {
	return Result{Target: target, Severity: Error, Message: fmt.Sprintf(format, args...), retry: retry}
}

// Fix returns the result with what the operator can do about it.
func (r Result) Fix(format string, args ...any) Result {
	r.Remedy = fmt.Sprintf(format, args...)
	return r
}

// As returns the result under another name than its check's: a check may have found out more than one thing.
func (r Result) As(name string) Result {
	r.Name = name
	return r
}

// String is the result on one line: name, message, remedy.
func (r Result) String() string {
	text := r.Name + ": " + r.Message
	if r.Remedy != "" {
		text += " (" + r.Remedy + ")"
	}
	return text
}

// Check looks at one thing and changes nothing.
type Check struct {
	Name string
	Look func(ctx context.Context) []Result
}

// Plan is how checks are run.
type Plan struct {
	Limit    time.Duration // for each check; one that takes longer is an error
	Patience time.Duration // for all together, to wait for what waiting may cure; 0: look once
	Ignore   []string      // names whose errors count as warnings; "all" is every name
	// Waiting is told before each pause what is being waited for. May be nil.
	Waiting func(errors []Result)
}

// Run runs all checks side by side and returns their results in the order of the checks.
//
// With patience it looks again, with pauses that double from a second to half a
// minute, at what may be cured by waiting: only the other side knows when it is there,
// so this has to ask. It does not wait while an error decides that waiting cannot cure.
func Run(ctx context.Context, checks []Check, plan Plan) []Result {
	deadline := time.Now().Add(plan.Patience)
	found := make([][]Result, len(checks))
	look(ctx, checks, found, plan.Limit)
	for pause := time.Second; ; pause = min(2*pause, 30*time.Second) {
		results := slices.Concat(found...)
		pending, hopeless := curable(results, plan.Ignore)
		if hopeless || len(pending) == 0 || time.Now().Add(pause).After(deadline) {
			return results
		}
		if plan.Waiting != nil {
			plan.Waiting(pending)
		}
		select {
		case <-ctx.Done():
			return results
		case <-time.After(pause):
		}
		for i, results := range found {
			if some, _ := curable(results, plan.Ignore); len(some) > 0 {
				found[i] = nil // look again
			}
		}
		look(ctx, checks, found, plan.Limit)
	}
}

// curable returns the errors that count and waiting may cure, and whether there is another that counts.
func curable(results []Result, ignore []string) (pending []Result, hopeless bool) {
	for _, result := range results {
		switch {
		case result.Severity != Error || ignored(result.Name, ignore):
		case result.retry == Waits:
			pending = append(pending, result)
		default:
			hopeless = true
		}
	}
	return pending, hopeless
}

// look runs the checks that have not found anything yet.
func look(ctx context.Context, checks []Check, found [][]Result, limit time.Duration) {
	var all sync.WaitGroup
	for i, check := range checks {
		if found[i] == nil {
			all.Go(func() { found[i] = run(ctx, check, limit) })
		}
	}
	all.Wait()
}

// grace lets a check that respects its context say itself what it waited for.
const grace = 250 * time.Millisecond

// run runs one check. A file system that hangs keeps even a stat from ending: then
// the check is left behind.
func run(ctx context.Context, check Check, limit time.Duration) []Result {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan []Result, 1)
	go func() { done <- check.Look(ctx) }()
	late := time.NewTimer(limit + grace)
	defer late.Stop()
	results := []Result{}
	select {
	case some := <-done:
		results = append(results, some...)
	case <-late.C:
		results = append(results, Fail(Waits, "", "no answer within %v", limit))
	}
	for i := range results {
		if results[i].Name == "" {
			results[i].Name = check.Name
		}
	}
	return results
}
