package packages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"unbounded/internal/paths"
)

func TestRemedy(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"nothing known", nil, []string{"system extension", "kmod, systemd-container", "another image"}},
		{"some other", map[string]string{"/etc/os-release": "ID=gentoo\n"}, []string{"another image"}},
		{"Flatcar", map[string]string{"/usr/lib/os-release": "NAME=\"Flatcar\"\nID=flatcar\n"}, []string{"update Flatcar", "system extension"}},
		{
			"Fedora CoreOS",
			map[string]string{"/etc/os-release": "ID=fedora\nVARIANT_ID=coreos\n"},
			[]string{"`rpm-ostree install kmod systemd-container` and reboot"},
		},
		{"its kin", map[string]string{"/etc/os-release": "ID=rhcos\n", "/usr/bin/rpm-ostree": ""}, []string{"rpm-ostree install"}},
		{"Fedora Server", map[string]string{"/etc/os-release": "ID=fedora\nVARIANT_ID=server\n"}, []string{"another image"}},
		{"Azure Container Linux", map[string]string{"/etc/os-release": "ID='azurelinux'\n"}, []string{"Azure Container Linux", "squashfs", "reboot"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			for name, content := range test.files {
				path := paths.At(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			got := Remedy(root, []string{"kmod", "systemd-container"})
			for _, want := range test.want {
				if !strings.Contains(got, want) || strings.Contains(got, "\n") {
					t.Errorf("Remedy = %q, want %q in one line", got, want)
				}
			}
		})
	}
}

func TestList(t *testing.T) {
	missing, err := Missing(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const want = "systemd-nspawn, systemd-nspawn@.service, org.freedesktop.machine1.service (package systemd-container), " +
		"modprobe (package kmod), mountpoint (package util-linux), mount, umount (package mount)"
	if got := List(missing, apt); got != want {
		t.Errorf("List = %q, want %q", got, want)
	}
}
