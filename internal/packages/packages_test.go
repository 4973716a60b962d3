package packages

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/run"
)

// fake answers the calls of a package manager in order: "" is success.
type fake struct {
	answers []string
	calls   []string
}

func (f *fake) run(_ context.Context, _ []string, program string, args ...string) ([]byte, error) {
	var words []string
	skip := false
	for _, arg := range args {
		if !skip && arg != "-o" && arg != "-y" && arg != "-q" {
			words = append(words, arg)
		}
		skip = arg == "-o"
	}
	f.calls = append(f.calls, program+" "+strings.Join(words, " "))
	answer := ""
	if len(f.answers) > 0 {
		answer, f.answers = f.answers[0], f.answers[1:]
	}
	if answer == "" {
		return nil, nil
	}
	return nil, errors.New(answer)
}

func TestInstall(t *testing.T) {
	const install = "apt-get install --no-install-recommends kmod"
	for _, test := range []struct {
		name    string
		manager string
		answers []string
		calls   []string
		want    string
	}{
		{name: "at once", manager: "apt-get", calls: []string{install}},
		{name: "after an update", manager: "apt-get", answers: []string{"unknown package"}, calls: []string{install, "apt-get update", install}},
		{
			name: "although one source is broken", manager: "apt-get",
			answers: []string{"unknown package", "other source"}, calls: []string{install, "apt-get update", install},
		},
		{
			name: "second attempt", manager: "apt-get", answers: []string{"a", "b", "c"},
			calls: []string{install, "apt-get update", install, install},
		},
		{
			name: "offline", manager: "apt-get",
			answers: []string{"a", "offline", "c", "a", "offline", "c", "a", "offline", "c"},
			calls:   []string{install, "apt-get update", install, install, "apt-get update", install, install, "apt-get update", install},
			want:    "install kmod: offline; is the package mirror reachable?",
		},
		{name: "dnf", manager: "dnf", calls: []string{"dnf install kmod"}},
		{name: "tdnf again", manager: "tdnf", answers: []string{"a"}, calls: []string{"tdnf install kmod", "tdnf install kmod"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fake{answers: test.answers}
			m := &Manager{Name: test.manager, root: t.TempDir(), run: f.run}
			err := m.Install(t.Context(), "kmod")
			if got := errorText(err); got != test.want {
				t.Errorf("Install = %q, want %q", got, test.want)
			}
			if diff := cmp.Diff(test.calls, f.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestInstallStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fake{answers: []string{"a"}}
	m := &Manager{Name: "dnf", run: func(ctx context.Context, env []string, program string, args ...string) ([]byte, error) {
		cancel()
		return f.run(ctx, env, program, args...)
	}}
	if err := m.Install(ctx, "kmod"); err == nil || len(f.calls) != 1 {
		t.Errorf("Install = %v after %d calls, want an error after one", err, len(f.calls))
	}
}

func TestFind(t *testing.T) {
	for _, test := range []struct {
		programs []string
		want     string
	}{
		{nil, ""},
		{[]string{"dnf"}, "dnf"},
		{[]string{"dnf", "tdnf"}, "tdnf"},
		{[]string{"apt-get", "dnf"}, "apt-get"},
	} {
		root := t.TempDir()
		for _, program := range test.programs {
			path := filepath.Join(root, "usr/bin", program)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		m, found := Find(root)
		if found != (test.want != "") || (found && m.Name != test.want) {
			t.Errorf("with %v: Find = %+v, %v, want %q", test.programs, m, found, test.want)
		}
	}
}

func TestHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if pid, err := holder(path); pid != 0 || err != nil {
		t.Errorf("absent: holder = %d, %v", pid, err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if pid, err := holder(path); pid != 0 || err != nil {
		t.Errorf("free: holder = %d, %v", pid, err)
	}
	if _, found := run.Find("/", "python3"); !found {
		t.Skip("needs python3 to hold a POSIX lock")
	}
	// A POSIX lock of this process would not be seen: it belongs to the process.
	other := exec.CommandContext(t.Context(), "python3", "-c",
		"import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()", path)
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if pid, err := holder(path); pid != other.Process.Pid || err != nil {
		t.Errorf("held: holder = %d, %v, want %d", pid, err, other.Process.Pid)
	}
	if err := errors.Join(stdin.Close(), other.Wait()); err != nil {
		t.Error(err)
	}
	if pid, err := holder(path); pid != 0 || err != nil {
		t.Errorf("free again: holder = %d, %v", pid, err)
	}
}
