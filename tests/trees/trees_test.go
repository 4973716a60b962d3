//go:build host

// Package trees takes the trees of machines off booted hosts, by the stage of reset alone.
package trees

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/host"
	"unbounded/units"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

const (
	unit   = "t-trees.service"
	tree   = "/var/lib/machines/kube1"
	locks  = "/run/systemd/nspawn/locks"
	record = `{"schemaVersion":1,"installID":"00112233445566778899aabbccddeeff","machineName":"legacy-reset","configFingerprint":"legacy-reset","phase":"resetting","prefix":"/opt/unbounded"}`
)

// alone is the stage's unit as it is, sandbox and all, but for its dependencies.
func alone(t *testing.T) string {
	t.Helper()
	rendered, err := units.Rendered(paths.DefaultRoot)
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(rendered["unbounded-reset-trees.service"]) {
		if !strings.HasPrefix(line, "Requires=") && !strings.HasPrefix(line, "After=") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// plant makes the tree of a machine, and in /srv/data what is not ours.
func plant(t *testing.T, h *host.Host) {
	t.Helper()
	h.MustRun(t, "cp -a /mnt "+tree+" && mkdir -p /srv/data /var/lib/unbounded/oci/blobs && touch /srv/data/canary /var/lib/unbounded/oci/blobs/x")
}

// start starts the stage and returns what it said.
func start(t *testing.T, h *host.Host, succeeds bool, says ...string) string {
	t.Helper()
	journal := "journalctl -q --no-pager -b -o cat --cursor-file=/tmp/cursor UNBOUNDED_STAGE=unbounded-rootfs || true"
	h.MustRun(t, journal)
	got := h.Run(t, "systemctl start "+unit)
	said := h.MustRun(t, journal)
	t.Logf("%v\n%s", got.Took.Round(time.Millisecond), said)
	if (got.Code == 0) != succeeds {
		t.Fatalf("systemctl start = %d\n%s", got.Code, h.Journal(t, unit))
	}
	for _, say := range says {
		if !strings.Contains(said, say) {
			t.Errorf("it does not say %q", say)
		}
	}
	h.MustRun(t, "test -e /srv/data/canary")
	return said
}

// whole fails when anything of the tree was touched.
func whole(t *testing.T, h *host.Host) {
	t.Helper()
	h.MustRun(t, "diff -rq --no-dereference -x resolv.conf -x machine-id /mnt/etc "+tree+"/etc && test -x "+tree+"/usr/bin/mount && test -e /var/lib/unbounded/oci/blobs/x")
}

// gone fails when anything is left.
func gone(t *testing.T, h *host.Host) {
	t.Helper()
	if left := h.MustRun(t, "ls -A /var/lib/machines "+locks+" 2>/dev/null | grep -v : | grep . || true; ls -d /var/lib/unbounded/oci 2>/dev/null || true; grep /var/lib/machines/ /proc/self/mountinfo || true"); left != "" {
		t.Errorf("left: %s", left)
	}
}

func TestTrees(t *testing.T) {
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) { testTrees(t, release) })
	}
}

func testTrees(t *testing.T, release string) {
	node, err := host.Artefact("node-tree")
	if err != nil {
		t.Fatal(err)
	}
	h := host.Boot(t, host.Options{
		Release: release, Args: []string{"--bind-ro=" + node + ":/mnt"},
		Overlay: map[string]host.File{
			"/etc/systemd/system/" + unit: {Content: alone(t)},
			paths.Nspawn("kube1"):         {Content: "[Exec]\nPrivateUsers=no\n[Network]\nVirtualEthernet=no\n"},
		},
	})
	h.MustRun(t, "mkdir -p "+paths.State)
	h.WriteFile(t, paths.Record, host.File{Content: record, Mode: 0o600})

	t.Run("volumes", func(t *testing.T) {
		plant(t, h)
		h.MustRun(t, fmt.Sprintf(`cd %s && mkdir -p 'srv/a b' var/lib/kubelet/pods/1/volumes/t .x && mount --bind /srv/data 'srv/a b' && mount -t tmpfs t var/lib/kubelet/pods/1/volumes/t &&
			mkdir -p sys && mount --rbind /sys sys && mount --rbind /dev dev && touch x && mount --bind /etc/hostname x && chattr +i etc/passwd || true; cp -a %s/etc /var/lib/machines/.kube2.partial`, tree, tree))
		before := h.MustRun(t, "grep -v /var/lib/machines/ /proc/self/mountinfo")
		files := h.MustRun(t, "find "+tree+" -xdev | wc -l")
		start(t, h, true, tree+": removed", "/var/lib/machines/.kube2.partial: removed", "/sys: unmounted")
		t.Logf("%s files", strings.TrimSpace(files))
		gone(t, h)
		if after := h.MustRun(t, "grep -v /var/lib/machines/ /proc/self/mountinfo"); after != before {
			t.Errorf("the host's own mounts are\n%s\nwant\n%s", after, before)
		}
	})
	t.Run("second run", func(t *testing.T) {
		hash := "find /var/lib/machines /var/lib/unbounded /var/log/journal -printf '%p %T@\\n' | grep -v '[.]journal ' | sort"
		before := h.MustRun(t, hash)
		if said := start(t, h, true); strings.Contains(said, ": ") {
			t.Errorf("it said %s", said)
		}
		if after := h.MustRun(t, hash); after != before {
			t.Errorf("files %s, want %s", after, before)
		}
	})
	t.Run("busy", func(t *testing.T) {
		plant(t, h)
		h.MustRun(t, "mount -t tmpfs t "+tree+"/srv && touch "+tree+"/srv/file && { sleep 1000 >/dev/null 2>&1 3<"+tree+"/srv/file & echo $! >/run/busy; }")
		start(t, h, false, tree+"/srv\" (t, tmpfs)", "device or resource busy", "sleep", `/srv/file" open`)
		whole(t, h)
		h.MustRun(t, "kill $(cat /run/busy)")
		start(t, h, true)
		gone(t, h)
	})
	t.Run("on a mount", func(t *testing.T) {
		h.MustRun(t, "mkdir -p "+tree+" && mount -t tmpfs disk "+tree+" && touch "+tree+"/canary")
		start(t, h, false, tree+"\" (disk, tmpfs) is a mount point", "umount -R "+tree)
		h.MustRun(t, "test -e "+tree+"/canary && umount "+tree)
		start(t, h, true)
		gone(t, h)
	})
	t.Run("nspawn that nobody knows", func(t *testing.T) {
		plant(t, h)
		h.MustRun(t, "systemd-run -q --unit=other systemd-nspawn -q --register=no --keep-unit -M other --link-journal=no -D "+tree+" sleep 1000")
		h.Await(t, time.Minute, "ls -A /var/lib/machines | grep -F .#kube1.lck")
		t.Log(h.MustRun(t, "ls -A /var/lib/machines "+locks))
		start(t, h, false, ".#kube1.lck locks is in use by pid ", "systemd-nspawn of other.service")
		whole(t, h)
		h.MustRun(t, "systemctl kill -s KILL other.service")
		h.Await(t, time.Minute, "! pgrep -x sleep")
		h.MustRun(t, "ls -A "+locks+" | grep inode- && ls /var/lib/machines/.#kube1.lck")
		start(t, h, true, "/var/lib/machines/.#kube1.lck: removed", locks+"/inode-")
		gone(t, h)
	})
	t.Run("machine that runs, machined masked", func(t *testing.T) {
		plant(t, h)
		h.MustRun(t, "systemctl start systemd-nspawn@kube1 && systemctl mask --now systemd-machined.service")
		start(t, h, false, "machine kube1 runs: stop it with `systemctl stop systemd-nspawn@kube1.service`")
		h.MustRun(t, "test -x "+tree+"/usr/bin/mount && systemctl stop systemd-nspawn@kube1.service")
		start(t, h, true, "is masked", tree+": removed")
		gone(t, h)
		h.MustRun(t, "systemctl unmask systemd-machined.service; ! find /var/log/journal -type l | grep .")
	})
	t.Run("sandboxed by a drop-in", func(t *testing.T) {
		plant(t, h)
		h.MustRun(t, "mkdir -p /etc/systemd/system/service.d && printf '[Service]\\nPrivateTmp=yes\\n' >/etc/systemd/system/service.d/x.conf && systemctl daemon-reload")
		start(t, h, false, "this process has mounts of its own")
		whole(t, h)
		h.MustRun(t, "rm -r /etc/systemd/system/service.d && systemctl daemon-reload")
		start(t, h, true)
		gone(t, h)
	})
}
