//go:build host

package host_test

import (
	"os"
	"strings"
	"testing"

	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

// The versions are those that the product has to work with.
var releases = map[string]string{"bookworm": "systemd 252 ", "trixie": "systemd 257 "}

func TestBoot(t *testing.T) {
	for release, version := range releases {
		t.Run(release, func(t *testing.T) {
			h := host.Boot(t, host.Options{Release: release, Bare: true})
			if got := h.MustRun(t, "systemctl --version"); !strings.HasPrefix(got, version) {
				t.Errorf("systemctl --version = %q, want %q first", got, version)
			}
			if got := strings.TrimSpace(h.MustRun(t, "systemctl is-system-running")); got != "running" {
				t.Errorf("is-system-running = %q, want running\n%s", got, h.Run(t, "systemctl --failed").Out)
			}
			if got := h.MustRun(t, "ip -o route show default"); !strings.Contains(got, host.OutsideIP) {
				t.Errorf("default route = %q, want one by %s", got, host.OutsideIP)
			}
			h.PowerOff(t)
			if got := h.Leader(); got != 0 {
				t.Errorf("Leader() = %d after the power off, want 0", got)
			}
		})
	}
}
