package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
)

func TestRuns(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		have Properties
		want bool
	}{
		{"inactive", Properties{ActiveState: "inactive"}, false},
		{"failed", Properties{ActiveState: "failed"}, false},
		{"not found", Properties{ActiveState: "inactive", LoadState: "not-found"}, false},
		{"masked", Properties{ActiveState: "inactive", LoadState: "masked"}, false},
		{"masked while it runs", Properties{ActiveState: "active", LoadState: "masked"}, true},
		{"active", Properties{ActiveState: "active"}, true},
		{"activating", Properties{ActiveState: "activating"}, true},
		{"deactivating", Properties{ActiveState: "deactivating"}, true},
		{"reloading", Properties{ActiveState: "reloading"}, true},
		{"inactive with a job", Properties{ActiveState: "inactive", Job: 7}, true},
		{"failed with a job", Properties{ActiveState: "failed", Job: 7}, true},
		{"a state that systemd invents one day", Properties{ActiveState: "refreshing"}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.have.Runs(); got != tt.want {
				t.Errorf("Runs() = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestNeverAtBoot(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, file, load string
		want             bool
	}{
		{"disabled", "disabled", "loaded", true},
		{"no file, not found", "", "not-found", true},
		{"not found", "not-found", "not-found", true},
		{"masked", "masked", "masked", true},
		{"static", "static", "loaded", true},
		{"indirect", "indirect", "loaded", true},
		{"masked for this boot", "masked-runtime", "masked", false},
		{"enabled", "enabled", "loaded", false},
		{"enabled for this boot", "enabled-runtime", "loaded", false},
		{"linked", "linked", "loaded", false},
		{"an alias", "alias", "loaded", false},
		{"generated", "generated", "loaded", false},
		{"bad", "bad", "bad-setting", false},
		{"nothing said, loaded", "", "loaded", false},
		{"nothing said, unreadable", "", "error", false},
		{"nothing said at all", "", "", false},
		{"a state that systemd invents one day", "dormant", "not-found", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := neverAtBoot(tt.file, tt.load); got != tt.want {
				t.Errorf("neverAtBoot(%q, %q) = %v, want %v", tt.file, tt.load, got, tt.want)
			}
		})
	}
}

func TestInfer(t *testing.T) {
	t.Parallel()
	before := Properties{ActiveState: "inactive", InvocationID: "a", conditionsAt: 1, ConditionResult: true, Result: "success"}
	tests := []struct {
		name  string
		verb  string
		after Properties
		want  string
	}{
		{"started", "start", Properties{ActiveState: "active"}, ResultDone},
		{"failed", "start", Properties{ActiveState: "failed"}, ResultFailed},
		{"waits for its restart", "start", Properties{ActiveState: "activating"}, ResultFailed},
		{"oneshot done", "start", Properties{ActiveState: "inactive", InvocationID: "b", Result: "success", conditionsAt: 2, ConditionResult: true}, ResultDone},
		{"oneshot failed, then reset", "start", Properties{ActiveState: "inactive", InvocationID: "b", Result: "exit-code", conditionsAt: 2, ConditionResult: true}, ResultFailed},
		{"target reached and not needed any more", "start", Properties{ActiveState: "inactive", InvocationID: "b"}, ResultDone},
		{"condition unmet", "start", Properties{ActiveState: "inactive", InvocationID: "a", conditionsAt: 2}, ResultDone},
		{"dependency failed", "start", before, ResultUnknown},
		{"forgotten", "start", Properties{ActiveState: "inactive", Result: "success"}, ResultUnknown},
		{"stopped", "stop", Properties{ActiveState: "inactive"}, ResultDone},
		{"stopped and failed", "stop", Properties{ActiveState: "failed"}, ResultDone},
		{"started again by somebody", "stop", Properties{ActiveState: "active"}, ResultUnknown},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := infer(tt.verb, before, tt.after); got != tt.want {
				t.Errorf("infer() = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestJobError(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		unit Properties
		want string
	}{
		{"nothing known", Properties{LoadState: "loaded", Result: "success"}, "start x.service: job result failed"},
		{
			"exit status",
			Properties{LoadState: "loaded", Result: "exit-code", ExecMainCode: 1, ExecMainStatus: 78, StatusText: "wait for \"a\""},
			`start x.service: job result failed (exit-code, exit status 78, status "wait for \"a\"")`,
		},
		{"signal", Properties{Result: "signal", ExecMainCode: 2, ExecMainStatus: 9}, "start x.service: job result failed (signal, signal 9)"},
		{"masked", Properties{LoadState: "masked"}, "start x.service: job result failed (unit is masked)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := &JobError{Verb: "start", Name: "x.service", Result: ResultFailed, Unit: tt.unit}
			if err.Error() != tt.want {
				t.Errorf("Error() = %s, want %s", err, tt.want)
			}
		})
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		want error
	}{
		{"org.freedesktop.systemd1.NoSuchUnit", ErrNoUnit},
		{"org.freedesktop.DBus.Error.FileNotFound", ErrNoUnit},
		{"org.freedesktop.systemd1.UnitMasked", ErrMasked},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			bus := dbus.Error{Name: tt.name, Body: []any{"words that differ between versions"}}
			err := named(bus)
			if !errors.Is(err, tt.want) || errorName(err) != tt.name {
				t.Errorf("named(%s) = %v, want %v and the answer in its chain", tt.name, err, tt.want)
			}
		})
	}
}

func TestFromBus(t *testing.T) {
	t.Parallel()
	got := fromBus(map[string]any{
		"ActiveState": "active", "Job": []any{uint32(12), dbus.ObjectPath("/org/freedesktop/systemd1/job/12")},
		"InvocationID": []byte{0xab, 1}, "MainPID": uint32(5), "DropInPaths": []string{"/d"}, "ExecMainStatus": int32(3), "ConditionResult": true,
		"ControlGroup": 7, // another type than the one we know: left out
	})
	want := Properties{ActiveState: "active", Job: 12, InvocationID: "ab01", MainPID: 5, DropInPaths: []string{"/d"}, ExecMainStatus: 3, ConditionResult: true}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Properties{})); diff != "" {
		t.Error(diff)
	}
}

// A call whose bus goes away under it says so in the words of the socket, before the session knows.
func TestBroken(t *testing.T) {
	write := &net.OpError{Op: "write", Net: "unix", Err: os.NewSyscallError("write", syscall.EPIPE)}
	for _, test := range []struct {
		name string
		err  error
		want bool
	}{
		{"written to a bus that has gone", fmt.Errorf("read properties of a.service: %w", write), true},
		{"read from one", io.EOF, true},
		{"closed by ourselves", net.ErrClosed, true},
		{"an answer", errors.New("no such unit"), false},
		{"out of time", context.DeadlineExceeded, false},
	} {
		if got := broken(test.err); got != test.want {
			t.Errorf("%s: broken(%v) = %v, want %v", test.name, test.err, got, test.want)
		}
	}
}
