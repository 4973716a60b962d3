//go:build host

package extension

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/tests/compare"
	"unbounded/tests/host"
)

// A merge starts the bootstrap from the extension, in this boot and in the next, and when the extension is taken off the host is what
// it was.
func TestExtension(t *testing.T) {
	options := bare(t, "")
	for _, row := range []struct {
		name    string
		reloads bool // systemd-sysext does, when an extension asks for it: systemd 255
	}{{"bookworm", false}, {"trixie", true}} {
		t.Run(row.name, func(t *testing.T) {
			options.Release = row.name
			h := host.Boot(t, options)
			before := compare.Take(t, h)

			h.WriteFile(t, paths.Config, host.File{Content: configuration, Mode: 0o600})
			h.MustRun(t, install)
			if !row.reloads {
				h.Reboot(t)
				if out := h.MustRun(t, "ls "+prefix+"/current/; systemctl list-units --all --no-legend 'unbounded-*'"); strings.Contains(out, ".service") {
					t.Errorf("it starts without the drop-in, which is not needed then:\n%s", out)
				}
				h.MustRun(t, older)
			}
			refused(t, h)
			h.Reboot(t)
			refused(t, h)
			staysReset(t, h)
			staysWhole(t, h)

			h.MustRun(t, takeOff)
			if out := h.MustRun(t, "systemctl list-units --all --no-legend 'unbounded-*'; systemctl list-unit-files --no-legend 'unbounded-*' || true"); out != "" {
				t.Errorf("taken off, systemd still knows:\n%s", out)
			}
			h.MustRun(t, "set -e; systemctl disable --now systemd-sysext.service; rm -rf /etc/unbounded /etc/systemd/system/unbounded-boot.service.d /etc/systemd/system/systemd-sysext.service.d; rmdir /var/lib/extensions; systemctl daemon-reload")
			diff := slices.DeleteFunc(compare.Diff(before, compare.Take(t, h)), systemds)
			if len(diff) > 0 {
				t.Errorf("taken off, the host is not what it was, %d differences:\n%s", len(diff), strings.Join(diff, "\n"))
			}
		})
	}
}

// systemds tells whether a difference is systemd's own: it notes that /usr was another one, and keeps a folder until the next boot.
func systemds(difference string) bool {
	for _, file := range []string{"/etc/.updated", "/var/.updated", "/var/cache/ldconfig/aux-cache", "/run/systemd/sysext"} {
		if strings.HasPrefix(difference, "files "+file+": ") {
			return true
		}
	}
	return false
}

// refused waits until this boot's attempt was refused, which comes after the admission.
func refused(t *testing.T, h *host.Host) {
	t.Helper()
	h.Await(t, limit, isRefused)
	var r record.Record
	if err := json.Unmarshal([]byte(h.ReadFile(t, paths.Record)), &r); err != nil {
		t.Fatal(err)
	}
	if r.Phase != record.Installing || r.Prefix != prefix {
		t.Errorf("the record has phase %s and prefix %s, want %s", r.Phase, r.Prefix, prefix)
	}
	h.MustRun(t, "systemctl is-active unbounded-autostart.target multi-user.target")
}

// staysReset resets the host, which the next boot does not make a node again.
func staysReset(t *testing.T, h *host.Host) {
	t.Helper()
	h.MustRun(t, prefix+"/current/unboundedctl reset --yes")
	h.Reboot(t)
	isIdle(t, h)
	if h.Exists(t, paths.Record) {
		t.Error("after a reset and a boot there is a record")
	}
}

// staysWhole tries to uninstall the extension of a host that was reset, file by file.
func staysWhole(t *testing.T, h *host.Host) {
	t.Helper()
	const list = "find " + prefix + " /usr/lib/systemd/system/unbounded* /etc/unbounded | sort"
	before := h.MustRun(t, list)
	result := h.Run(t, prefix+"/current/unboundedctl uninstall --yes")
	if result.Code != 78 || !strings.Contains(result.Err, "\n  rm -r /var/lib/extensions/unbounded\n  systemd-sysext refresh\n") {
		t.Errorf("uninstall = %d\n%s%s", result.Code, result.Out, result.Err)
	}
	if after := h.MustRun(t, list); after != before {
		t.Errorf("uninstall was refused and took something off:\n%s\nof:\n%s", after, before)
	}
}
