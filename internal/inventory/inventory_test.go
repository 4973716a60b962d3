package inventory

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/tree"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T) (*tree.Root, string) {
	t.Helper()
	dir := t.TempDir()
	root, err := tree.Open(dir)
	must(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root, dir
}

func TestSaveAndLoad(t *testing.T) {
	root, dir := open(t)
	if _, err := Load(root); !errors.Is(err, ErrNone) {
		t.Errorf("Load = %v, want %v", err, ErrNone)
	}
	want := Inventory{Version: version, Image: Image{"r.test/a:v1", "sha256:00", "linux/amd64"}}
	want.Set(Binary{Name: "runc", Version: "1", Files: []File{{"/bin/runc", 3, 0o755, 17, strings.Repeat("a", 64)}}})
	want.Set(Binary{Name: "crictl", Version: "1"})
	want.Set(Binary{Name: "crictl", Version: "2"})
	must(t, want.Save(root))
	got, err := Load(root)
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	path := filepath.Join(dir, Path)
	before, err := os.Stat(path)
	must(t, err)
	must(t, want.Save(root))
	after, err := os.Stat(path)
	must(t, err)
	if !os.SameFile(before, after) || before.Mode() != 0o600 {
		t.Errorf("written again, or mode %v", before.Mode())
	}
	if b, ok := got.Binary("crictl"); !ok || b.Version != "2" {
		t.Errorf("Binary = %+v, %v", b, ok)
	}
}

func TestLoadRefuses(t *testing.T) {
	for _, test := range []struct{ name, text, err string }{
		{"another version", `{"schemaVersion":2}`, "schemaVersion 2"},
		{"a path for a digest", `{"schemaVersion":1,"binaries":[{"name":"runc","sha256":"../../../etc/shadow"}]}`, "is not valid"},
		{"a path for a file's digest", `{"schemaVersion":1,"binaries":[{"name":"runc","files":[{"path":"/x","sha256":"../x"}]}]}`, "is not valid"},
		{"not JSON", `x`, "read inventory"},
		{"huge", strings.Repeat(" ", maxBytes+1), "more than"},
	} {
		root, dir := open(t)
		path := filepath.Join(dir, Path)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(test.text), 0o600))
		if _, err := Load(root); err == nil || errors.Is(err, ErrNone) || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: Load = %v, want %q", test.name, err, test.err)
		}
	}
}

func TestWrong(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(path string) error
		want   string
	}{
		{"nothing", func(string) error { return nil }, ""},
		{"time only", func(p string) error { return os.Chtimes(p, time.Time{}, time.Unix(1, 0)) }, ""},
		{"removed", os.Remove, "missing"},
		{"mode", func(p string) error { return os.Chmod(p, 0o644) }, "mode is 0644, want 0755"},
		{"longer", func(p string) error { return os.WriteFile(p, []byte("runcc"), 0o755) }, "changed"},
		{"same size", func(p string) error {
			return errors.Join(os.WriteFile(p, []byte("runC"), 0o755), os.Chtimes(p, time.Time{}, time.Unix(1, 0)))
		}, "changed"},
		{"folder", func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o755)) }, "not a file"},
		{"link", func(p string) error { return errors.Join(os.Remove(p), os.Symlink("/bin/true", p)) }, "not a file"},
		{"link for its folder", func(p string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(p)), os.Symlink("/usr/bin", filepath.Dir(p)))
		}, "missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root, dir := open(t)
			path := filepath.Join(dir, "bin/runc")
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, []byte("runc"), 0o755))
			file, err := Measure(root, "/bin/runc")
			must(t, err)
			must(t, test.change(path))
			if got, err := file.Wrong(root); got != test.want || err != nil {
				t.Errorf("Wrong = %q, %v, want %q", got, err, test.want)
			}
		})
	}
}
