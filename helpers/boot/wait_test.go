package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/journal"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

// lives are the states that the boot's unit goes through; after the last one the wait is stopped.
type lives []systemd.Properties

func (l lives) Until(_ context.Context, _ string, done func(systemd.Properties) bool) (systemd.Properties, error) {
	for _, p := range l {
		if done(p) {
			return p, nil
		}
	}
	return systemd.Properties{}, errors.New("stopped")
}

func TestAwait(t *testing.T) {
	t.Parallel()
	const (
		success = "inactive"
		failed  = "failed"
	)
	ended := func(state string, status int32) systemd.Properties {
		return systemd.Properties{ActiveState: state, ExecMainCode: 1, ExecMainStatus: status, BegunAt: time.Unix(1, 0)}
	}
	retries := systemd.Properties{ActiveState: "activating", SubState: "auto-restart", ExecMainCode: 1, ExecMainStatus: 78, BegunAt: time.Unix(1, 0)}
	for _, test := range []struct {
		name   string
		units  lives
		marked bool
		want   exit.Status
		says   string
	}{
		{name: "complete", units: lives{{ActiveState: "active"}, ended(success, 0)}, marked: true},
		{name: "skipped, since complete", units: lives{{ActiveState: "inactive"}}, marked: true},
		{name: "crashed, started again, complete", units: lives{retries, {ActiveState: "active"}, ended(success, 0)}, marked: true},
		{name: "failed, but somebody else has completed it", units: lives{ended(failed, 78)}, marked: true},
		{name: "refused", units: lives{{ActiveState: "active"}, ended(failed, 78)}, want: exit.Refused, says: "refused"},
		{name: "stopped by its operator", units: lives{{ActiveState: "active"}, ended(success, 0)}, want: exit.Failed, says: "has ended"},
		{name: "killed by a signal of that number", units: lives{{ActiveState: "failed", ExecMainCode: 2, ExecMainStatus: 78, BegunAt: time.Unix(1, 0)}}, want: exit.Failed},
		{name: "never started, as after a reset", units: lives{{ActiveState: "inactive"}}},
		{name: "we are stopped", units: lives{{ActiveState: "active"}}, want: exit.Failed, says: "stopped"},
		{name: "to be started", units: lives{{ActiveState: "inactive", Job: 7}}, want: exit.Failed, says: "stopped"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			if test.marked {
				if err := durable.MkdirAll(paths.At(root, paths.State), 0o700); err != nil {
					t.Fatal(err)
				}
				if _, err := durable.Mark(paths.At(root, paths.Complete)); err != nil {
					t.Fatal(err)
				}
			}
			err := await(t.Context(), root, journal.To(&bytes.Buffer{}), test.units)
			if exit.Of(err) != test.want || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("await() = %v, status %d, want %d and %q", err, exit.Of(err), test.want, test.says)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"now"}, {"wait", "wait"}} {
		if err := run(t.Context(), journal.To(&bytes.Buffer{}), args); exit.Of(err) != exit.Usage {
			t.Errorf("run(%q) = %v, want usage", args, err)
		}
	}
}
