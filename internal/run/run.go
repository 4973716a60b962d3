// Package run runs programs of the host, for the few things that have no native interface.
//
// A program gets its arguments as they are, a fixed environment and no input; what it says on
// standard error is in the error, as one line. When the context ends it is sent
// SIGTERM, and SIGKILL after a grace time.
package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"unbounded/internal/paths"
)

// grace is what a stopped program gets to leave no half-written state.
const grace = 30 * time.Second

// Path are the folders in which programs of the host are looked for.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Env is the environment of a program: nothing of ours, and messages in English.
func Env(more ...string) []string {
	return append([]string{"PATH=" + Path, "LC_ALL=C.UTF-8", "HOME=/root"}, more...)
}

// Error is how a program ended that did not end with status 0.
type Error struct {
	Program string
	Stderr  string // its last lines, joined
	Err     error
}

func (e *Error) Error() string {
	if e.Stderr == "" {
		return fmt.Sprintf("%s: %v", e.Program, e.Err)
	}
	return fmt.Sprintf("%s: %v: %s", e.Program, e.Err, e.Stderr)
}

func (e *Error) Unwrap() error { return e.Err }

// ErrMissing is in the chain when the program is in none of the folders of Path.
var ErrMissing = errors.New("program is not installed")

// Find returns where program is on the host below root: its path there without root.
func Find(root, program string) (string, bool) {
	for _, dir := range filepath.SplitList(Path) {
		path := filepath.Join(dir, program)
		info, err := os.Stat(paths.At(root, path))
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, true
		}
	}
	return "", false
}

// Command runs program with args and returns its standard output.
func Command(ctx context.Context, env []string, program string, args ...string) ([]byte, error) {
	path, ok := Find("/", program)
	if !ok {
		return nil, fmt.Errorf("%s: %w", program, ErrMissing)
	}
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(ctx, path, args...)
	command.Env, command.Dir = env, "/"
	command.Stdout, command.Stderr = &stdout, &stderr
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = grace
	if err := command.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return stdout.Bytes(), &Error{program, summary(stderr.String()), err}
	}
	return stdout.Bytes(), nil
}

// summary is the last lines of s as one.
func summary(s string) string {
	const most = 3
	var lines []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-most):], "; ")
}
