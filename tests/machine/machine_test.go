//go:build host

// Package machine holds the tests of what speaks to systemd, on booted hosts.
package machine

import (
	"os"
	"testing"
)

// inside skips a test that must run on a booted host: TestHosts runs this program there.
func inside(t *testing.T) {
	t.Helper()
	if os.Getenv("UNBOUNDED_INSIDE") == "" {
		t.Skip("runs inside a booted host, by TestHosts")
	}
}
