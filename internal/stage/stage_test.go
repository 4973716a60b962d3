package stage

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/failure"
	"unbounded/internal/journal"
	"unbounded/internal/lock"
	"unbounded/internal/paths"
	"unbounded/internal/record"
)

const canary = "canary.0123456789abcdef"

var admittedJSON = `{"MachineName":"m1","Cluster":{"Version":"v1.37.2","ClusterDNS":"10.0.0.10",
"CaCertBase64":"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJnRENDQVNlZ0F3SUJBZ0lVQT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="},
"Kubelet":{"ApiServer":"https://api.test","Auth":{"BootstrapToken":"` + canary + `"}},"OCIImage":"r.test/node:1"}`

// rootWith is a host whose record is in phase; an empty phase means no record.
func rootWith(t *testing.T, phase record.Phase, admitted string) string {
	t.Helper()
	root := t.TempDir()
	write := func(path string, data []byte) {
		if err := durable.Replace(paths.At(root, path), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("/etc/hostname", []byte("h\n"))
	if admitted != "" {
		write(paths.Admitted, []byte(admitted))
	}
	if phase == "" {
		return root
	}
	r := record.New(record.Identity{MachineName: "m1", KubernetesVersion: "1.37.2", OCIImage: "r.test/node:1", APIServer: "https://api.test"})
	r.Phase = phase
	data, err := r.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	write(paths.Record, data)
	return root
}

func TestRunHoldsTheRecord(t *testing.T) {
	for _, test := range []struct {
		name     string
		phase    record.Phase
		admitted string
		needs    Needs
		want     exit.Status
		runs     bool
		says     string
	}{
		{"no record", "", admittedJSON, Installing, exit.Refused, false, paths.Target},
		{"resetting", record.Resetting, admittedJSON, Installing, exit.Refused, false, "unbounded-reset.target"},
		{"resetting, verify", record.Resetting, admittedJSON, Completed, exit.Refused, false, "unbounded-reset.target"},
		{"completed by another start", record.Complete, admittedJSON, Installing, exit.OK, false, "another start"},
		{"verify while installing", record.Installing, admittedJSON, Completed, exit.Refused, false, "not complete"},
		{"verify", record.Complete, "", Completed, exit.OK, true, ""},
		{"not admitted", record.Installing, "", Installing, exit.Refused, false, paths.Admitted},
		{"admitted is another installation", record.Installing, strings.Replace(admittedJSON, "node:1", "node:2", 1), Installing, exit.Refused, false, "another installation"},
		{"admitted is rubbish", record.Installing, "{", Installing, exit.Refused, false, ""},
		{"reset", record.Resetting, "", Resetting, exit.OK, true, ""},
		{"reset that has not begun", record.Complete, "", Resetting, exit.Refused, false, paths.ResetTarget},
		{"reset of an unfinished installation that has not begun", record.Installing, admittedJSON, Resetting, exit.Refused, false, paths.ResetTarget},
		{"reset that has ended", "", "", Resetting, exit.OK, false, "nobody's"},
		{"admission needs nothing", "", "", LockOnly, exit.OK, true, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := rootWith(t, test.phase, test.admitted)
			ran := false
			var out bytes.Buffer
			program := Program{Name: "unbounded-x", Root: root, Log: journal.To(&out), Verbs: map[string]Verb{
				"converge": {test.needs, func(context.Context, *Env) error { ran = true; return nil }},
			}}
			if got := program.Run(t.Context(), []string{"converge", "kube1"}); got != test.want || ran != test.runs {
				t.Errorf("Run() = %d, ran %v, want %d, %v; %s", got, ran, test.want, test.runs, &out)
			}
			if !strings.Contains(out.String(), test.says) {
				t.Errorf("%q does not say %q", &out, test.says)
			}
			if strings.Contains(out.String(), canary) {
				t.Errorf("the token is in %q", &out)
			}
		})
	}
}

func TestRunReportsOnce(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want exit.Status
		note bool
	}{
		{"failed", errors.New("load br_netfilter: no such module"), exit.Failed, true},
		{"refused", exit.As(exit.Refused, errors.New("no")), exit.Refused, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := rootWith(t, "", "")
			var out bytes.Buffer
			program := Program{Name: "unbounded-x", Root: root, Log: journal.To(&out), Verbs: map[string]Verb{
				"converge": {LockOnly, func(context.Context, *Env) error { return test.err }},
			}}
			if got := program.Run(t.Context(), []string{"converge"}); got != test.want {
				t.Errorf("Run() = %d, want %d", got, test.want)
			}
			if got := strings.TrimSpace(out.String()); got != test.err.Error() {
				t.Errorf("logged %q, want the one line %q", got, test.err)
			}
			note, err := failure.Read(root)
			if err != nil || note.Stage != "unbounded-x" || note.Cause != test.err.Error() || note.Status != int(test.want) || note.Time.IsZero() {
				t.Errorf("failure = %+v, %v", note, err)
			}
		})
	}
}

// Whoever stopped a stage knows why: a note would hide the failure that came before.
func TestStoppedStageLeavesNoNote(t *testing.T) {
	root := rootWith(t, "", "")
	ctx, cancel := context.WithCancel(t.Context())
	program := Program{Name: "unbounded-x", Root: root, Log: journal.To(&bytes.Buffer{}), Verbs: map[string]Verb{
		"converge": {LockOnly, func(ctx context.Context, _ *Env) error { cancel(); return ctx.Err() }},
	}}
	if got := program.Run(ctx, []string{"converge"}); got != exit.Failed {
		t.Errorf("Run() = %d, want %d", got, exit.Failed)
	}
	if _, err := failure.Read(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("failure.Read() = %v, want no note", err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"fly"}, {"converge", "kube3"}, {"converge", "kube1", "x"}, {"converge", "../x"}} {
		program := Program{Name: "unbounded-x", Root: t.TempDir(), Log: journal.To(&bytes.Buffer{}), Verbs: map[string]Verb{
			"converge": {LockOnly, func(context.Context, *Env) error { t.Error("ran"); return nil }},
		}}
		if got := program.Run(t.Context(), args); got != exit.Usage {
			t.Errorf("Run(%q) = %d, want %d", args, got, exit.Usage)
		}
	}
}

func TestHeldLock(t *testing.T) {
	root := rootWith(t, "", "")
	reset, err := lock.Take(root, lock.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer reset.Release()
	var out bytes.Buffer
	program := Program{Name: "unbounded-x", Root: root, Log: journal.To(&out), Verbs: map[string]Verb{
		"converge": {LockOnly, func(context.Context, *Env) error { t.Error("ran"); return nil }},
	}}
	if got := program.Run(t.Context(), []string{"converge"}); got != exit.Held || !strings.Contains(out.String(), paths.Lock) {
		t.Errorf("Run() = %d, %q, want %d and the lock's path", got, &out, exit.Held)
	}
}

// A stage of a bootstrap that looks in while a reset runs holds the lock for a moment: reset waits for it to go.
func TestResetWaitsForTheLock(t *testing.T) {
	root := rootWith(t, record.Resetting, "")
	stage, err := lock.Take(root, lock.Shared)
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	var out bytes.Buffer
	program := Program{Name: "unbounded-x", Root: root, Log: journal.To(&out), Verbs: map[string]Verb{
		"remove": {Resetting, func(context.Context, *Env) error { return <-released }},
	}}
	timer := time.AfterFunc(100*time.Millisecond, func() { released <- stage.Release() })
	defer timer.Stop()
	if got := program.Run(t.Context(), []string{"remove"}); got != exit.OK {
		t.Errorf("Run() = %d, %s, want it to wait", got, &out)
	}
}

// With the lock held exclusively two verbs of reset never run at once, and a bootstrap keeps out.
func TestResetHoldsTheLockAlone(t *testing.T) {
	root := rootWith(t, record.Resetting, "")
	program := Program{Name: "unbounded-x", Root: root, Log: journal.To(&bytes.Buffer{}), Verbs: map[string]Verb{
		"remove": {Resetting, func(context.Context, *Env) error {
			var held *lock.HeldError
			if _, err := lock.Take(root, lock.Shared); !errors.As(err, &held) {
				t.Errorf("Take(Shared) during a reset = %v, want it held", err)
			}
			return nil
		}},
	}}
	if got := program.Run(t.Context(), []string{"remove"}); got != exit.OK {
		t.Errorf("Run() = %d", got)
	}
}
