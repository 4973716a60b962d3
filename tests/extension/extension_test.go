//go:build host || cluster || vm

// Package extension tests the system extension on booted hosts: where it is merged the bootstrap starts from it, and taken
// off it leaves nothing.
//
// The hosts are containers, without loop devices: what systemd-sysext merges there is the folder that the image is unpacked
// into. TestImage has a virtual machine merge the image itself.
package extension

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"unbounded/tests/host"
	"unbounded/tests/release"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

const (
	prefix = "/usr/lib/unbounded"
	limit  = 2 * time.Minute
)

// What docs/operations.md says, but for where the image comes from.
const (
	install = "set -e; mkdir -p /var/lib/extensions; cp -a /mnt/extension /var/lib/extensions/unbounded; systemctl enable --now systemd-sysext.service"
	older   = "set -e; install -D -m 0644 " + prefix + "/doc/systemd-sysext.conf /etc/systemd/system/systemd-sysext.service.d/10-unbounded.conf; systemctl daemon-reload"
	takeOff = "set -e; rm -r /var/lib/extensions/unbounded; systemd-sysext refresh; systemctl daemon-reload; systemctl stop unbounded-autostart.target; journalctl --update-catalog"
)

// configuration is one that is admitted, and refused by the next stage.
const configuration = `{"MachineName": "node-1", "OCIImage": "registry.test/node:1",
	"Cluster": {"CaCertBase64": "bm8gQ0E=", "ClusterDNS": "10.96.0.10", "Version": "v1.34.0"},
	"Kubelet": {"ApiServer": "https://192.0.2.1:6443", "Auth": {"BootstrapToken": "abcdef.0123456789abcdef"}}}`

// isRefused succeeds when this boot's attempt was refused.
const isRefused = `test "$(systemctl show -P ExecMainStatus unbounded-boot.service) $(systemctl is-failed unbounded-boot.service)" = "78 failed"`

// bare is a host that has the unpacked image at hand, and not the product.
func bare(t *testing.T, name string) host.Options {
	t.Helper()
	tree := filepath.Join(t.TempDir(), "extension")
	release.Unpack(t, release.Image(t, t.TempDir()), tree)
	return host.Options{Release: name, Bare: true, Args: []string{"--bind-ro=" + tree + ":/mnt/extension"}}
}

// isIdle demands that this boot has started no bootstrap.
func isIdle(t *testing.T, h *host.Host) {
	t.Helper()
	for _, row := range []struct{ script, want string }{
		{"systemctl is-active unbounded-autostart.target", "active"},
		{"systemctl show -P ConditionResult unbounded-boot.service", "no"},
		{"systemctl show -P ExecMainPID unbounded-boot.service", "0"},
		{"systemctl show -P ExecMainPID unbounded-admit.service", "0"},
	} {
		if got := strings.TrimSpace(h.Run(t, row.script).Out); got != row.want {
			t.Errorf("%s = %s, want %s", row.script, got, row.want)
		}
	}
}
