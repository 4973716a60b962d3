package hardening

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFiles(t *testing.T) {
	for _, test := range []struct {
		name     string
		programs []string
		networkd bool
		want     []string
	}{
		{name: "image-based"},
		{name: "Debian", programs: []string{"apt-get"}, want: []string{aptFile}},
		{name: "Ubuntu", programs: []string{"apt-get", "needrestart"}, networkd: true, want: []string{aptFile, needrestartFile, networkdFile}},
		{name: "networkd alone", networkd: true, want: []string{networkdFile}},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			for _, program := range test.programs {
				path := filepath.Join(root, "usr/bin", program)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, nil, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for _, file := range Files(root, test.networkd) {
				got = append(got, file.Path)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}
