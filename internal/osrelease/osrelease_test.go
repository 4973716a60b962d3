package osrelease

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRead(t *testing.T) {
	for _, test := range []struct {
		name     string
		etc, usr string // "-": there is none
		want     string // of ID
	}{
		{"plain", "NAME=x\nID=debian\n", "-", "debian"},
		{"quotes, space and a comment", "# ID=no\n ID = \"flatcar\" \n", "-", "flatcar"},
		{"single quotes", "ID='fedora'", "-", "fedora"},
		{"only the image's", "-", "ID=azurelinux\n", "azurelinux"},
		{"empty", "", "ID=azurelinux\n", "azurelinux"},
		{"the host's own first", "ID=mine\n", "ID=azurelinux\n", "mine"},
		{"neither", "-", "-", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			for path, content := range map[string]string{"etc/os-release": test.etc, "usr/lib/os-release": test.usr} {
				if content == "-" {
					continue
				}
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := Read(root)["ID"]; got != test.want {
				t.Errorf("ID = %q, want %q", got, test.want)
			}
		})
	}
}
