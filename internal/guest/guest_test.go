package guest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/guest"
	"unbounded/internal/tree"
)

func plan(t *testing.T, root *tree.Root, files []guest.File) []string {
	t.Helper()
	changes, err := guest.Plan(root, files)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, c := range changes {
		lines = append(lines, c.File.Path+" "+c.How())
		if err := guest.Apply(root, c.File); err != nil {
			t.Fatal(err)
		}
	}
	return lines
}

func TestPlan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, err := tree.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	files := []guest.File{
		guest.Text("/etc/a", "a"), guest.Private("/etc/b/c", []byte("c")), guest.Symlink("/dev/null", "/etc/d"),
		{Path: "/etc/e", Kind: guest.Folder, Mode: 0o700},
		guest.Gone("/etc/f"),
	}
	written := []string{"/etc/a written", "/etc/b/c written", "/etc/d written", "/etc/e written"}
	if diff := cmp.Diff(written, plan(t, root, files)); diff != "" {
		t.Errorf("first (-want +have):\n%s", diff)
	}
	if have := plan(t, root, files); have != nil {
		t.Errorf("second = %v, want nothing", have)
	}
	for _, spoil := range []struct {
		name string
		do   func() error
		want string
	}{
		{"content", func() error { return os.WriteFile(filepath.Join(dir, "etc/a"), []byte("b"), 0o644) }, "/etc/a written"},
		{"mode", func() error { return os.Chmod(filepath.Join(dir, "etc/b/c"), 0o644) }, "/etc/b/c mode and owner corrected"},
		{"mode of a folder", func() error { return os.Chmod(filepath.Join(dir, "etc/e"), 0o755) }, "/etc/e mode and owner corrected"},
		{"link to another", func() error {
			return os.Rename(filepath.Join(dir, "etc/a"), filepath.Join(dir, "etc/d"))
		}, "/etc/a written"},
		{"unwanted", func() error { return os.WriteFile(filepath.Join(dir, "etc/f"), nil, 0o644) }, "/etc/f removed"},
	} {
		if err := spoil.do(); err != nil {
			t.Fatal(err)
		}
		have := plan(t, root, files)
		if len(have) == 0 || have[0] != spoil.want {
			t.Errorf("%s: %v, want %s", spoil.name, have, spoil.want)
		}
		if have := plan(t, root, files); have != nil {
			t.Errorf("%s, second = %v, want nothing", spoil.name, have)
		}
	}
}

// An image decides where the links of its tree point to; none may lead out of it.
func TestHostileLinks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, link, target string }{
		{"folder, absolute", "etc", ""}, // the target is the folder outside
		{"folder, dots", "etc/systemd", "../../outside"},
		{"file, absolute", "etc/hostname", ""},
		{"folder below a link", "etc/unbounded", "../../../../../../../../../../"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			base := t.TempDir()
			outside := filepath.Join(base, "outside")
			for _, dir := range []string{"tree", "outside"} {
				if err := os.Mkdir(filepath.Join(base, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			link := filepath.Join(base, "tree", test.link)
			if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
				t.Fatal(err)
			}
			target := test.target
			if target == "" {
				target = outside
			}
			if err := os.Symlink(target, link); err != nil {
				t.Fatal(err)
			}
			root, err := tree.Open(filepath.Join(base, "tree"))
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			for _, f := range []guest.File{
				guest.Text("/etc/hostname", "x"), guest.Symlink("/dev/null", "/etc/systemd/system/x.service"),
				{Path: "/etc/unbounded/y", Kind: guest.Folder, Mode: 0o700},
				guest.Gone("/etc/canary"),
			} {
				// An error is as good as a file inside: what counts is what is outside.
				_ = guest.Apply(root, f)
			}
			entries, err := os.ReadDir(outside)
			if err != nil || len(entries) > 0 {
				t.Errorf("outside of the tree: %v, %v", entries, err)
			}
		})
	}
}
