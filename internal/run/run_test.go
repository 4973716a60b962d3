package run

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCommand(t *testing.T) {
	for _, test := range []struct {
		name   string
		script string
		stdout string
		want   string // in the error
	}{
		{name: "output", script: "echo out; echo noise >&2", stdout: "out\n"},
		{name: "no input", script: "cat", stdout: ""},
		{name: "fixed environment", script: `echo "$PATH $SECRET"`, stdout: Path + " \n"},
		{name: "failure", script: "echo a >&2; echo b >&2; echo >&2; echo c >&2; echo d >&2; exit 7", want: "sh: exit status 7: b; c; d"},
		{name: "silent failure", script: "exit 7", want: "sh: exit status 7"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("SECRET", "canary")
			stdout, err := Command(t.Context(), Env(), "sh", "-c", test.script)
			switch {
			case test.want == "" && (err != nil || string(stdout) != test.stdout):
				t.Errorf("Command = %q, %v, want %q", stdout, err, test.stdout)
			case test.want != "" && (err == nil || err.Error() != test.want):
				t.Errorf("Command = %v, want %q", err, test.want)
			}
		})
	}
}

func TestCommandMissing(t *testing.T) {
	if _, err := Command(t.Context(), Env(), "no-such-program"); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("Command = %v, want ErrMissing that names it", err)
	}
}

func TestCommandStops(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := Command(ctx, Env(), "sleep", "60")
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 10*time.Second {
		t.Errorf("Command = %v after %v, want the deadline at once", err, time.Since(began))
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	for path, mode := range map[string]os.FileMode{
		"usr/bin/tool": 0o755, "usr/sbin/tool": 0o755, "usr/bin/data": 0o644, "usr/bin/folder/x": 0o755,
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ program, want string }{
		{"tool", "/usr/sbin/tool"}, {"data", ""}, {"folder", ""}, {"absent", ""},
	} {
		if got, found := Find(root, test.program); got != test.want || found != (test.want != "") {
			t.Errorf("Find(%q) = %q, %v, want %q", test.program, got, found, test.want)
		}
	}
}
