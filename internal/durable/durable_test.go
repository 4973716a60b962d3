package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestWrite(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "a/b/file")
	for _, test := range []struct {
		name    string
		prepare func() error
		data    string
		mode    fs.FileMode
		changed bool
	}{
		{"new", func() error { return nil }, "one", 0o644, true},
		{"same", func() error { return nil }, "one", 0o644, false},
		{"content", func() error { return nil }, "two", 0o644, true},
		{"same size", func() error { return nil }, "owt", 0o644, true},
		{"mode", func() error { return nil }, "owt", 0o600, true},
		{"mode changed by hand", func() error { return os.Chmod(path, 0o666) }, "owt", 0o600, true},
		{"setuid by hand", func() error { return os.Chmod(path, 0o600|fs.ModeSetuid) }, "owt", 0o600, true},
		{"symlink", func() error { return relink(path, "/etc/hostname") }, "owt", 0o600, true},
		{"dangling symlink", func() error { return relink(path, "/nowhere/at/all") }, "owt", 0o600, true},
		{"empty", func() error { return nil }, "", 0o600, true},
		{"same empty", func() error { return nil }, "", 0o600, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := test.prepare(); err != nil {
				t.Fatal(err)
			}
			before, _ := os.Lstat(path)
			changed, err := Write(path, []byte(test.data), test.mode)
			if err != nil || changed != test.changed {
				t.Fatalf("Write() = %v, %v, want %v", changed, err, test.changed)
			}
			info, err := os.Lstat(path)
			if err != nil || info.Mode() != test.mode {
				t.Errorf("mode = %v, %v, want %v", info.Mode(), err, test.mode)
			}
			if data, err := os.ReadFile(path); err != nil || string(data) != test.data {
				t.Errorf("content = %q, %v, want %q", data, err, test.data)
			}
			if !changed && !os.SameFile(before, info) {
				t.Error("an unchanged file was replaced")
			}
			if left, _ := filepath.Glob(filepath.Dir(path) + "/.*"); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("parent's mode = %v, %v, want 0755 whatever the umask", info.Mode(), err)
	}
}

func relink(path, target string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Symlink(target, path)
}

func TestWriteKeepsSecretsFolderClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secrets/token")
	if _, err := Write(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode = %v, %v, want 0700", info.Mode(), err)
	}
}

func TestWriteOverDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(path, []byte("x"), 0o600); err == nil {
		t.Error("Write() over a directory succeeded")
	}
	if left, _ := filepath.Glob(filepath.Dir(path) + "/.*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestRemove(t *testing.T) {
	path := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("x", path); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		if removed, err := Remove(path); err != nil || removed != want {
			t.Errorf("Remove() = %v, %v, want %v", removed, err, want)
		}
	}
	if removed, err := Remove(filepath.Join(path, "below/nothing")); err != nil || removed {
		t.Errorf("Remove() below an absent folder = %v, %v, want false", removed, err)
	}
}

func TestRemedy(t *testing.T) {
	if err := remedy("/a/b", syscall.EPERM); !errors.Is(err, fs.ErrPermission) || !strings.HasSuffix(err.Error(), "see `lsattr -d /a /a/b`") {
		t.Errorf("of a file that is immutable: %v", err)
	}
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	keep := filepath.Join(dir, "keep")
	if _, err := Write(keep, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := writeTemp(filepath.Join(dir, "killed"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "keep" {
		t.Errorf("left: %v, %v, want keep alone", entries, err)
	}
	if err := Sweep(filepath.Join(dir, "absent")); err != nil {
		t.Errorf("Sweep() of an absent folder = %v", err)
	}
}

func TestUnchangedKeepsTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if _, err := Write(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	past := time.Unix(1000, 0)
	if err := os.Chtimes(path, past, past); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || !info.ModTime().Equal(past) {
		t.Errorf("mtime = %v, %v, want it untouched", info.ModTime(), err)
	}
}

func TestErrorNamesPath(t *testing.T) {
	_, err := Write("/proc/nothing/here", []byte("x"), 0o600)
	if err == nil || !strings.Contains(err.Error(), "/proc/nothing") {
		t.Errorf("error = %v, want one that names the path", err)
	}
}
