//go:build host

// Package admission tests the rows of the admission table that need a booted host.
package admission

import (
	"os"
	"strings"
	"testing"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

const (
	configuration = `{"MachineName":"m1","Cluster":{"Version":"v1.37.2"},"Kubelet":{"ApiServer":"https://api.test:6443"},"OCIImage":"r.test/node:1"}`
	settings      = "[Exec]\nPrivateUsers=no\nCapability=all\nNotifyReady=yes\n[Network]\nVirtualEthernet=no\n"
)

// hash is every file of the host with mode, owner, time and content, but for what runs and what is logged.
const hash = `{ find / -xdev \( -path /run -o -path /proc -o -path /sys -o -path /tmp -o -path /var/tmp -o -path /var/log \) -prune -o -printf '%p %m %U %G %T@ %l\n' |
	sort; find /etc /var/lib /opt -xdev -type f -exec sha256sum {} + | sort; } | sha256sum`

func boot(t *testing.T, release string, more map[string]host.File) *host.Host {
	t.Helper()
	overlay := map[string]host.File{paths.Config: {Content: configuration, Mode: 0o600}}
	for path, file := range more {
		overlay[path] = file
	}
	return host.Boot(t, host.Options{Release: release, Overlay: overlay})
}

// refused starts admission and holds it to a refusal, or an ordinary failure, that changed nothing.
func refused(t *testing.T, h *host.Host, status string, says ...string) {
	t.Helper()
	before := h.MustRun(t, hash)
	if got := h.Run(t, "systemctl start "+paths.AdmitUnit); got.Code != 1 {
		t.Fatalf("systemctl start = %d, want 1\n%s", got.Code, h.Journal(t, paths.AdmitUnit))
	}
	if got := strings.TrimSpace(h.MustRun(t, "systemctl show -P ExecMainStatus "+paths.AdmitUnit)); got != status {
		t.Errorf("exit status %s, want %s\n%s", got, status, h.Journal(t, paths.AdmitUnit))
	}
	line := h.MustRun(t, "journalctl -b -o cat -p err UNBOUNDED_STAGE=unbounded-admission | tail -n 1")
	for _, say := range says {
		if !strings.Contains(line, say) {
			t.Errorf("%q does not name %q", line, say)
		}
	}
	if after := h.MustRun(t, hash); after != before {
		t.Error("a refusal changed the host")
	}
	if note := h.ReadFile(t, paths.LastFailure); !strings.Contains(note, paths.AdmitUnit) {
		t.Errorf("%s = %s, want the unit named", paths.LastFailure, note)
	}
}

func TestRefusals(t *testing.T) {
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			machine := boot(t, release, map[string]host.File{
				paths.Nspawn("kube2"): {Content: settings},
			})
			machine.MustRun(t, "mkdir -p /var/lib/machines/kube2 && cp -a --one-file-system /etc /usr /bin /sbin /lib* /var/lib/machines/kube2/ && mkdir -p /var/lib/machines/kube2/var/lib && systemctl start systemd-nspawn@kube2")
			refused(t, machine, "78", "running machine kube2", "reset")
			machine.MustRun(t, "systemctl mask --now systemd-machined.service dbus-org.freedesktop.machine1.service")
			refused(t, machine, "1", "kube", "machined")
		})
	}
}

// A fresh host: admitted, once; a second start writes nothing; a host without machined is clean too.
func TestFreshHost(t *testing.T) {
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			h := boot(t, release, nil)
			// A package host has no systemd-container yet: prerequisites installs it.
			h.MustRun(t, `rm -f /usr/share/dbus-1/system-services/org.freedesktop.machine1.service /lib/systemd/system/dbus-org.freedesktop.machine1.service /lib/systemd/system/systemd-machined.service &&
				systemctl daemon-reload && busctl call org.freedesktop.DBus /org/freedesktop/DBus org.freedesktop.DBus ReloadConfig`)
			h.MustRun(t, "systemctl start "+paths.AdmitUnit)
			record := h.ReadFile(t, paths.Record)
			for _, want := range []string{`"phase": "installing"`, `"prefix": "/opt/unbounded"`, strings.TrimSpace(h.ReadFile(t, "/etc/machine-id"))} {
				if !strings.Contains(record, want) {
					t.Errorf("record %s does not have %s", record, want)
				}
			}
			before := h.MustRun(t, hash)
			h.MustRun(t, "for i in 1 2 3 4 5; do systemctl start "+paths.AdmitUnit+" & done; wait")
			if after := h.MustRun(t, hash); after != before {
				t.Error("a second start wrote something")
			}
			if mode := h.MustRun(t, "stat -c %a:%U "+paths.Admitted); mode != "600:root\n" {
				t.Errorf("%s is %s, want 600:root", paths.Admitted, mode)
			}
		})
	}
}

// On a first boot the machine-id is a mount until it is committed: admission comes after that.
func TestFirstBoot(t *testing.T) {
	h := boot(t, "trixie", map[string]host.File{
		"/etc/machine-id": {Absent: true},
		"/etc/systemd/system/multi-user.target.wants/" + paths.AdmitUnit: {Link: "/etc/systemd/system/" + paths.AdmitUnit},
	})
	record := h.ReadFile(t, paths.Record)
	if id := strings.TrimSpace(h.ReadFile(t, "/etc/machine-id")); !strings.Contains(record, id) {
		t.Errorf("record %s does not have the machine-id %s", record, id)
	}
}
