package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/exit"
	"unbounded/internal/journal"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

// script is a target whose attempts end as written down.
type script struct {
	outcomes []outcome
	attempts int
}

func (s *script) attempt(context.Context) outcome {
	s.attempts++
	return s.outcomes[s.attempts-1]
}

func TestRun(t *testing.T) {
	t.Parallel()
	failed := errors.New("start unbounded-bootstrap.target: job result dependency")
	stage := func(status int32) outcome { return outcome{failed, []ended{{"unbounded-admit.service", 1, status}}} }
	killed := outcome{failed, []ended{{"unbounded-rootfs@kube1.service", 2, 9}}}
	tests := []struct {
		name     string
		outcomes []outcome
		waits    []time.Duration
		status   exit.Status
		says     string
	}{
		{name: "success", outcomes: []outcome{{}}},
		{name: "failed, then success", outcomes: []outcome{stage(1), {}}, waits: []time.Duration{10 * time.Second}},
		{name: "somebody holds the lock", outcomes: []outcome{stage(75), {}}, waits: []time.Duration{10 * time.Second}},
		{name: "killed by a signal that looks like a status", outcomes: []outcome{killed, {}}, waits: []time.Duration{10 * time.Second}},
		{name: "systemd was not reached", outcomes: []outcome{{err: errors.New("no bus")}, {}}, waits: []time.Duration{10 * time.Second}},
		{
			name: "the wait doubles", outcomes: []outcome{stage(1), stage(1), killed, stage(75), stage(1), stage(1), stage(1), {}},
			waits: []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 150 * time.Second, 150 * time.Second, 150 * time.Second},
		},
		{name: "refused", outcomes: []outcome{stage(78)}, status: exit.Refused, says: "unbounded-admit.service"},
		{name: "refused after failures", outcomes: []outcome{stage(1), stage(78)}, waits: []time.Duration{10 * time.Second}, status: exit.Refused},
		{name: "misused", outcomes: []outcome{stage(64)}, status: exit.Refused},
		{name: "not permitted", outcomes: []outcome{stage(77)}, status: exit.Refused},
		{
			name: "one stage failed, another refused", status: exit.Refused, says: "unbounded-preflight.service",
			outcomes: []outcome{{failed, []ended{{"unbounded-rootfs@kube1.service", 1, 1}, {"unbounded-preflight.service", 1, 78}}}},
		},
		{name: "the target is masked", outcomes: []outcome{{err: exit.As(exit.Refused, failed)}}, status: exit.Refused, says: paths.Target},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var waits []time.Duration
			target := &script{outcomes: tt.outcomes}
			b := boot{
				log: journal.To(&bytes.Buffer{}), target: target,
				sleep:  func(_ context.Context, d time.Duration) { waits = append(waits, d) },
				random: func() float64 { return 0 },
			}
			err := b.run(t.Context())
			if got := exit.Of(err); got != tt.status {
				t.Errorf("run() = %v, status %d, want %d", err, got, tt.status)
			}
			if err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("run() = %v, want %q named", err, tt.says)
			}
			if target.attempts != len(tt.outcomes) {
				t.Errorf("%d attempts, want %d", target.attempts, len(tt.outcomes))
			}
			if diff := cmp.Diff(tt.waits, waits); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRunStopped(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	target := &script{outcomes: []outcome{{err: errors.New("canceled")}}}
	b := boot{
		log: journal.To(&bytes.Buffer{}), target: target, random: func() float64 { return 0 },
		sleep: func(context.Context, time.Duration) { cancel() },
	}
	if err := b.run(ctx); err != nil {
		t.Errorf("run() = %v, want nil: being stopped is no failure", err)
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	for failures := range 20 {
		low, high := backoff(failures, 0), backoff(failures, 0.999999)
		if low < shortest || high > longest || low > high || failures < 4 && high > 2*low {
			t.Errorf("after %d failures: between %v and %v", failures, low, high)
		}
	}
	if got := backoff(1000, 1); got != longest {
		t.Errorf("backoff(1000) = %v, want %v", got, longest)
	}
}

func TestFailed(t *testing.T) {
	t.Parallel()
	stale := systemd.Properties{ActiveState: "failed", InvocationID: "old", ExecMainCode: 1, ExecMainStatus: 78}
	before := map[string]systemd.Properties{
		"unbounded-preflight.service":    stale,
		"unbounded-rootfs@kube1.service": stale,
	}
	after := map[string]systemd.Properties{
		"unbounded-admit.service":        {ActiveState: "inactive", InvocationID: "new"},
		"unbounded-kernel.service":       {ActiveState: "failed", InvocationID: "new", ExecMainCode: 1, ExecMainStatus: 1},
		"unbounded-preflight.service":    stale, // not got to
		"unbounded-rootfs@kube1.service": {ActiveState: "failed", InvocationID: "new", ExecMainCode: 2, ExecMainStatus: 9},
	}
	want := []ended{{"unbounded-kernel.service", 1, 1}, {"unbounded-rootfs@kube1.service", 2, 9}}
	if diff := cmp.Diff(want, failed(before, after), cmp.AllowUnexported(ended{})); diff != "" {
		t.Error(diff)
	}
}
