package main

import (
	"strings"
	"testing"
	"time"

	"unbounded/internal/systemd"
)

func TestUnsaid(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	admit := stage{"unbounded-admit.service", systemd.Properties{ActiveState: "inactive", Result: "success", StartedAt: began, EndedAt: at(1)}}
	end := func(unit, result string, code, status int32, ended int) stage {
		return stage{unit, systemd.Properties{
			ActiveState: "failed", Result: result, ExecMainCode: code, ExecMainStatus: status, StartedAt: at(ended - 1), EndedAt: at(ended),
		}}
	}
	const rootfs, kernel = "unbounded-rootfs@kube1.service", "unbounded-kernel.service"
	tests := []struct {
		name  string
		noted time.Time
		all   []stage
		unit  string
		says  string
	}{
		{name: "killed", all: []stage{admit, end(rootfs, "signal", 2, 9, 5)}, unit: rootfs, says: "signal 9"},
		{name: "out of memory", all: []stage{admit, end(rootfs, "oom-kill", 2, 9, 5)}, unit: rootfs, says: "memory"},
		{name: "out of time, though it ended by itself", all: []stage{admit, end(rootfs, "timeout", 1, 1, 5)}, unit: rootfs, says: "TimeoutStartSec"},
		{name: "not executable", all: []stage{admit, end(rootfs, "exit-code", 1, 203, 5)}, unit: rootfs, says: "203/EXEC (the program is missing"},
		{name: "no credential", all: []stage{end(admit.unit, "exit-code", 1, 243, 5)}, unit: admit.unit, says: "243/CREDENTIALS"},
		{name: "crashed", all: []stage{admit, end(rootfs, "exit-code", 1, 2, 5)}, unit: rootfs, says: "status 2"},
		{name: "admission itself", all: []stage{end("unbounded-admit.service", "signal", 2, 9, 1)}, unit: "unbounded-admit.service", says: "signal 9"},
		{name: "the first of two", all: []stage{admit, end(kernel, "signal", 2, 9, 7), end(rootfs, "oom-kill", 2, 9, 5)}, unit: rootfs, says: "memory"},
		{name: "an older note", noted: began.Add(-time.Minute), all: []stage{admit, end(rootfs, "signal", 2, 9, 5)}, unit: rootfs, says: "signal 9"},
		{name: "a note of this attempt", noted: at(4), all: []stage{admit, end(rootfs, "signal", 2, 9, 5)}},
		{name: "ended by itself", all: []stage{admit, end(rootfs, "exit-code", 1, 1, 5)}},
		{name: "refused", all: []stage{admit, end(rootfs, "exit-code", 1, 78, 5)}},
		{name: "stopped before it listened", all: []stage{admit, end(rootfs, "signal", 2, 15, 5)}},
		{name: "killed in an earlier attempt", all: []stage{admit, end(rootfs, "signal", 2, 9, -5)}},
		{name: "nothing failed", all: []stage{admit}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, why := unsaid(tt.noted, tt.all)
			if got.unit != tt.unit || !strings.Contains(why, tt.says) || (why == "") != (tt.unit == "") {
				t.Errorf("unsaid() = %s %q, want %s %q", got.unit, why, tt.unit, tt.says)
			}
		})
	}
}

func TestStatusAndProgram(t *testing.T) {
	t.Parallel()
	if got := status(systemd.Properties{ExecMainCode: 2, ExecMainStatus: 9}); got != 137 {
		t.Errorf("status of SIGKILL = %d, want 137", got)
	}
	if got := status(systemd.Properties{ExecMainCode: 1, ExecMainStatus: 203}); got != 203 {
		t.Errorf("status of 203 = %d", got)
	}
	for unit, want := range map[string]string{
		"unbounded-rootfs@kube1.service": "unbounded-rootfs", "unbounded-kernel.service": "unbounded-kernel",
	} {
		if got := program(unit); got != want {
			t.Errorf("program(%s) = %s, want %s", unit, got, want)
		}
	}
}
