//go:build host

package image_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/host"
	"unbounded/tests/image"
)

// What waiting cannot cure is said once, and not tried again.
func TestRefused(t *testing.T) {
	tests := []struct {
		name  string
		image map[string]host.File // what the image, or an earlier boot, has left
		after map[string]host.File // what comes after Ignition
		unit  string               // that refuses
		says  []string
	}{
		{
			name: "another installation's record", unit: paths.AdmitUnit, says: []string{`installed as MachineName "m1"`, "reset"},
			image: map[string]host.File{paths.Record: {Mode: 0o600, Content: `{"schemaVersion":1,"installID":"00112233445566778899aabbccddeeff","machineName":"m1","phase":"installing",` +
				`"configFingerprint":"c450aef0b3255c61d169b528949df158234f16391c2a70d03548e7698976aade"}`}},
		},
		{
			name: "not a configuration", unit: paths.AdmitUnit, says: []string{paths.Config},
			after: map[string]host.File{paths.Config: {Mode: 0o600, Content: "{"}},
		},
		{
			name: "no programs in the image", unit: paths.PreflightUnit,
			says: []string{"systemd-nspawn", "systemd-container", "modprobe", "kmod", "system extension"},
			image: map[string]host.File{
				"/usr/bin/systemd-nspawn": {Absent: true}, "/usr/bin/machinectl": {Absent: true}, "/usr/sbin/modprobe": {Absent: true},
				"/usr/lib/systemd/system/systemd-nspawn@.service": {Absent: true}, "/usr/lib/systemd/system/systemd-machined.service": {Absent: true},
				"/usr/share/dbus-1/system-services/org.freedesktop.machine1.service": {Absent: true},
			},
		},
	}
	for _, test := range tests {
		for _, release := range []string{"bookworm", "trixie"} {
			t.Run(test.name+" on "+release, func(t *testing.T) {
				t.Parallel()
				h := host.Boot(t, image.Options(host.Options{Release: release, Overlay: test.image}))
				image.Serve(t, h)
				image.Apply(t, h, image.Document(t, []byte(config)))
				for path, file := range test.after {
					h.WriteFile(t, path, file)
				}
				h.On(t)
				h.Await(t, time.Minute, "systemctl is-failed "+paths.BootUnit)
				for name, want := range map[string]string{"SubState": "failed", "ExecMainStatus": "78", "NRestarts": "0"} {
					if got := property(t, h, paths.BootUnit, name); got != want {
						t.Errorf("%s of %s = %s, want %s", name, paths.BootUnit, got, want)
					}
				}
				h.MustRun(t, "systemctl is-active multi-user.target")
				attempts := strings.Count(h.MustRun(t, "journalctl -b -o cat _PID=1 UNIT="+test.unit), "Starting ")
				if attempts != 1 {
					t.Errorf("%d attempts, want 1", attempts)
				}
				isSaid(t, h, test.unit, test.says)
			})
		}
	}
}

// isSaid demands one line of an unit that has all the words.
func isSaid(t *testing.T, h *host.Host, unit string, words []string) {
	t.Helper()
	said := h.Journal(t, unit)
	for _, line := range host.Lines(said) {
		missing := 0
		for _, word := range words {
			if !strings.Contains(line, word) {
				missing++
			}
		}
		if missing == 0 {
			return
		}
	}
	t.Errorf("%s has no line with %q:\n%s", unit, words, said)
}

// Documents pass the check of Ignition's own, in each form that Debian's knows.
func TestValidate(t *testing.T) {
	ignition, err := host.Artefact("ignition")
	if err != nil {
		t.Fatal(err)
	}
	for _, options := range []string{
		"", "--plain", "--plain --prefix /var/opt/unbounded --boot-complete", "--arch amd64 --root-image 192.168.77.1:5000/other:v2",
	} {
		name := filepath.Join(t.TempDir(), "document")
		if err := os.WriteFile(name, image.Document(t, []byte(config), strings.Fields(options)...), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), filepath.Join(ignition, "ignition-validate"), name).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", options, err, out)
		}
	}
}
