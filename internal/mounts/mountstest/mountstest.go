// Package mountstest runs the tests of a package in a mount namespace of their own: what they mount
// nobody else sees, and nothing of it is left.
package mountstest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inside is the variable by which a test binary knows that it is in the namespace.
const inside = "UNBOUNDED_TEST_HAS_OWN_MOUNTS"

// Main runs the tests and returns the exit status. Without root it runs them where it is: Need skips those that mount.
func Main(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run()
	}
	if os.Getenv(inside) == "" {
		again := exec.CommandContext(context.Background(), os.Args[0], os.Args[1:]...)
		again.Env = append(os.Environ(), inside+"=yes")
		again.Stdin, again.Stdout, again.Stderr = os.Stdin, os.Stdout, os.Stderr
		again.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		err := again.Run()
		var status *exec.ExitError
		if errors.As(err, &status) {
			return status.ExitCode()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Need ends a test that cannot be without root: skipped on a desk, failed in CI.
func Need(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("needs root, and CI must not skip it")
	}
	t.Skip("SKIPPED: needs root")
}

// Tmpfs mounts a memory file system at path, which it makes. It is unmounted after the test.
func Tmpfs(t *testing.T, path string) {
	t.Helper()
	Mount(t, "tmpfs", path, "tmpfs", 0)
}

// Bind mounts what is at source at path, which it makes.
func Bind(t *testing.T, source, path string) {
	t.Helper()
	Mount(t, source, path, "", unix.MS_BIND)
}

// Mount mounts.
func Mount(t *testing.T, source, path, kind string, flags uintptr) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(source, path, kind, flags, ""); err != nil {
		t.Fatalf("mount %s: %v", path, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) }) // most are unmounted by then
}

// Shared makes the mount at path shared.
func Shared(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mount("", path, "", unix.MS_SHARED, ""); err != nil {
		t.Fatalf("share %s: %v", path, err)
	}
}
