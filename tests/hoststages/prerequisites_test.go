//go:build host

package hoststages

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

const startPrerequisites = "systemctl start " + paths.PrerequisitesUnit

// repository makes a repository on the host whose package kmod brings modprobe, and makes it apt's only source.
const repository = `set -e
mkdir -p /repo/kmod/DEBIAN /repo/kmod/usr/sbin && cd /repo
printf 'Package: kmod\nVersion: 999\nArchitecture: all\nMaintainer: test <test@test>\nDescription: test\n' >kmod/DEBIAN/control
printf '#!/bin/sh\n' >kmod/usr/sbin/modprobe && chmod 755 kmod/usr/sbin/modprobe
dpkg-deb --root-owner-group --build kmod kmod.deb >/dev/null
{ cat kmod/DEBIAN/control; printf 'Filename: ./kmod.deb\nSize: %s\nSHA256: %s\n' "$(stat -c %s kmod.deb)" "$(sha256sum kmod.deb | cut -d' ' -f1)"; } >Packages
rm -rf /etc/apt/sources.list.d/* && echo 'deb [trusted=yes] file:/repo ./' >/etc/apt/sources.list
dpkg --purge --force-all kmod >/dev/null 2>&1; rm -f /usr/sbin/modprobe /sbin/modprobe
`

func bootBare(t *testing.T, release string, more map[string]host.File) *host.Host {
	t.Helper()
	overlay := map[string]host.File{
		paths.Config: {Content: configuration(t, nil), Mode: 0o600},
		paths.SystemdDir + "/" + paths.PreflightUnit + ".d/stub.conf": {Content: "[Service]\nExecStart=\nExecStart=/bin/true\n"},
	}
	for path, file := range more {
		overlay[path] = file
	}
	return host.Boot(t, host.Options{Release: release, Overlay: overlay})
}

func TestPrerequisitesInstalls(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		h := bootBare(t, release, nil)
		h.MustRun(t, repository)
		if got := h.Run(t, startPrerequisites); got.Code != 0 {
			t.Fatalf("start = %d\n%s", got.Code, journal(t, h))
		}
		if got := h.MustRun(t, "dpkg-query -W -f '${Status} ${Version}' kmod"); got != "install ok installed 999" {
			t.Errorf("kmod is %q", got)
		}
		first := h.Tree(t, host.TreeOptions{Paths: []string{"/usr", "/etc", "/var/lib/dpkg", "/var/lib/apt", "/var/cache/apt"}})
		h.MustRun(t, startPrerequisites)
		again := h.Tree(t, host.TreeOptions{Paths: []string{"/usr", "/etc", "/var/lib/dpkg", "/var/lib/apt", "/var/cache/apt"}})
		if diff := cmp.Diff(first, again); diff != "" {
			t.Errorf("the second start changed:\n%s", diff)
		}
	})
}

func TestPrerequisitesFails(t *testing.T) {
	for _, test := range []struct {
		name   string
		set    string
		status int
		says   []string
	}{
		{
			name: "mirror away", status: 1,
			set:  repository + "mv /repo/Packages /repo/gone",
			says: []string{"install kmod", "apt-get", "is the package mirror reachable?"},
		},
		{
			name: "no package manager", status: 78,
			set:  "rm /usr/bin/mountpoint /usr/bin/apt-get",
			says: []string{"lacks mountpoint (package util-linux)", "no package manager"},
		},
		{
			name: "read-only usr", status: 78,
			set:  "rm /usr/bin/mountpoint && mount --bind /usr /usr && mount -o remount,ro,bind /usr",
			says: []string{"lacks mountpoint (package util-linux)", "/usr is read-only"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := bootBare(t, "bookworm", nil)
			h.MustRun(t, test.set)
			if got := h.Run(t, startPrerequisites); got.Code == 0 {
				t.Fatal("the stage succeeded")
			}
			text, status := cause(t, h)
			if status != test.status || strings.Contains(text, "\n") {
				t.Errorf("status %d, want %d; cause %q in one line", status, test.status, text)
			}
			for _, want := range test.says {
				if !strings.Contains(text, want) {
					t.Errorf("cause %q does not say %q", text, want)
				}
			}
		})
	}
}

// A bus that started before systemd-container was installed learns of machined.
func TestPrerequisitesBusLearnsMachined(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		const services = "/usr/share/dbus-1/system-services"
		const known = "busctl call org.freedesktop.DBus / org.freedesktop.DBus ListActivatableNames | grep -c machine1"
		h := bootBare(t, release, nil)
		h.MustRun(t, startPrerequisites)
		// dbus-daemon, unlike dbus-broker, looks again when it is asked for what it does not know, which admission does.
		h.WriteFile(t, paths.SystemdDir+"/"+paths.AdmitUnit+".d/stub.conf", host.File{Content: "[Service]\nExecStart=\nExecStart=/bin/true\n"})
		h.MustRun(t, "systemctl daemon-reload")
		// It also watches its folders: it must not see the file go and come, so a mount hides it for a while.
		h.MustRun(t, "cp -a "+services+" /run/hidden && rm /run/hidden/org.freedesktop.machine1.service && mount --bind /run/hidden "+services+" && systemctl reload dbus.service")
		if got := h.Run(t, known); got.Code == 0 {
			t.Fatal("the bus knows machined although its file is hidden")
		}
		h.MustRun(t, "umount "+services)
		if got := h.Run(t, startPrerequisites); got.Code != 0 {
			t.Fatalf("start = %d\n%s", got.Code, journal(t, h))
		}
		if got := h.Journal(t, paths.PrerequisitesUnit); !strings.Contains(got, "machined was new to it") {
			t.Errorf("the stage did not tell the bus:\n%s", got)
		}
		h.MustRun(t, known)
		h.MustRun(t, "machinectl list")
	})
}
