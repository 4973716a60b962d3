//go:build host || cluster

// Package image_test boots image-based hosts for the first time, and follows what becomes of them.
package image_test

import (
	"os"
	"strings"
	"testing"

	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

// property is what systemd says of a unit.
func property(t *testing.T, h *host.Host, unit, name string) string {
	t.Helper()
	return strings.TrimSpace(h.MustRun(t, "systemctl show --value -p "+name+" "+unit))
}
