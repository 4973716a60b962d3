//go:build vm

package vm_test

import (
	"os"
	"testing"

	"unbounded/tests/host"
	"unbounded/tests/vm"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

// A cut loses what was written, and keeps what was synced: if it does not, no other test here means anything.
func TestCutLosesPageCache(t *testing.T) {
	v := vm.Boot(t, vm.Options{})
	// The journal's own commits, one every five seconds, would save what nobody synced.
	v.MustRun(t, `set -e
		mount -o remount,commit=600 /
		mkdir /data && echo old >/data/replaced && sync
		echo synced >/data/synced && sync /data/synced /data
		echo unsynced >/data/unsynced
		echo new >/data/.replaced && mv /data/.replaced /data/replaced
		head -c 1000000 /dev/zero >>/data/synced`)
	v.Cut(t)
	v.On(t)
	for _, row := range []struct{ script, want string }{
		{"cat /data/synced", "synced\n"},
		{"cat /data/replaced", "old\n"},
		{"ls /data", "replaced\nsynced\n"},
	} {
		if got := v.Run(t, row.script); got.Out != row.want {
			t.Errorf("after the cut: %s = %q, want %q", row.script, got.Out[:min(80, len(got.Out))], row.want)
		}
	}
	v.MustRun(t, "uname -r; systemctl --failed; systemd-analyze blame | head -20; ip addr")
}
