package dropin

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/paths"
)

func write(t *testing.T, root, path, content string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func left(t *testing.T, root string) []string {
	t.Helper()
	var files []string
	for _, pattern := range []string{runDir, paths.SystemdDir} {
		found, err := filepath.Glob(filepath.Join(root, pattern, "*.d/*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			files = append(files, file[len(root):])
		}
	}
	return files
}

func TestSweepQuiet(t *testing.T) {
	root := t.TempDir()
	if swept, err := SweepQuiet(root); swept || err != nil {
		t.Errorf("nothing there: %v, %v", swept, err)
	}
	other := runDir + "/b.service.d/zz.conf"
	write(t, root, QuietPath("a.service"), Quiet)
	write(t, root, QuietPath("b.service"), Quiet)
	write(t, root, other, "[Unit]\n")
	if swept, err := SweepQuiet(root); !swept || err != nil {
		t.Errorf("SweepQuiet = %v, %v, want true", swept, err)
	}
	if diff := cmp.Diff([]string{other}, left(t, root)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Dir(filepath.Join(root, QuietPath("a.service")))); !os.IsNotExist(err) {
		t.Errorf("an empty folder is left: %v", err)
	}
}

func TestRemoveAll(t *testing.T) {
	root := t.TempDir()
	write(t, root, paths.ConditionDropIn("a.service"), Content("a.service", ""))
	write(t, root, paths.ConditionDropIn("b.service"), Content("b.service", Firewall))
	write(t, root, paths.ConditionDropIn("c.service"), "[Unit]\nDescription=somebody else's\n")
	for _, want := range [][]string{{"a.service", "b.service"}, nil} {
		units, err := RemoveAll(root)
		if diff := cmp.Diff(want, units); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	if diff := cmp.Diff([]string{paths.ConditionDropIn("c.service")}, left(t, root)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}
