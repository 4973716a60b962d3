//go:build vm

package extension

import (
	"os"
	"testing"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
	"unbounded/tests/release"
	"unbounded/tests/vm"
)

// The image is merged at boot by systemd and a kernel of the distribution, and the bootstrap starts from it.
func TestImage(t *testing.T) {
	image, err := os.ReadFile(release.Image(t, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	v := vm.Boot(t, vm.Options{Options: ground.Options{Host: host.Options{Release: "trixie", Bare: true, Overlay: map[string]host.File{
		"/var/lib/extensions/unbounded.raw":                               {Content: string(image)},
		paths.SystemdDir + "/sysinit.target.wants/systemd-sysext.service": {Link: "/usr/lib/systemd/system/systemd-sysext.service"},
	}}, Config: map[string]any{"Cluster.CaCertBase64": "bm8gQ0E="}}})
	v.MustRun(t, "timeout 120 sh -c 'until "+isRefused+"; do sleep 1; done'")
	v.MustRun(t, "set -e; grep -q '\"prefix\": \"/usr/lib/unbounded\"' "+paths.Record+"; losetup --list | grep /var/lib/extensions/unbounded.raw")
	v.MustRun(t, "set -e; rm /var/lib/extensions/unbounded.raw; systemd-sysext refresh; ! test -e /usr/lib/unbounded")
	// What was started meanwhile runs from the merged /usr, and keeps the image in use.
	v.PowerOff(t)
	v.On(t)
	v.MustRun(t, "set -e; ! test -e /usr/lib/unbounded; ! losetup --list | grep unbounded.raw; ! systemctl list-unit-files --no-legend 'unbounded-*'")
}
