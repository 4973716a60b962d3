package tree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func await(t *testing.T, w *Watch, what string) {
	t.Helper()
	select {
	case <-w.C:
	case <-time.After(5 * time.Second):
		t.Fatalf("no event after %s", what)
	}
}

func TestWatch(t *testing.T) {
	dir := t.TempDir()
	// A link to an absolute path is inside the tree, whatever is outside of it.
	if err := os.MkdirAll(filepath.Join(dir, "data/kubelet"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/data", filepath.Join(dir, "var")); err != nil {
		t.Fatal(err)
	}
	root, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	w, err := root.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add("/var/kubelet/pki"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Add of an absent folder: %v, want fs.ErrNotExist", err)
	}
	for range 2 {
		if err := w.Add("/var/kubelet"); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "data/kubelet/kubeconfig"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, w, "a write")
	if err := os.Mkdir(filepath.Join(dir, "data/kubelet/pki"), 0o755); err != nil {
		t.Fatal(err)
	}
	await(t, w, "a new folder")
	if err := w.Add("/var/kubelet/pki"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("x", filepath.Join(dir, "data/kubelet/pki/current.pem")); err != nil {
		t.Fatal(err)
	}
	await(t, w, "a new link")
	cancel()
}

func TestReadLinked(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "pki"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pki/a.pem"), []byte("certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"absolute": "/pki/a.pem", "relative": "pki/a.pem", "dots": "../../../../pki/a.pem", "out": "/etc/hostname", "folder": "pki"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	for _, name := range []string{"absolute", "relative", "dots", "pki/a.pem"} {
		if got, err := root.ReadLinked(name, 100); err != nil || string(got) != "certificate" {
			t.Errorf("ReadLinked(%s) = %q, %v", name, got, err)
		}
	}
	if _, err := root.ReadLinked("out", 100); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadLinked of a link out of the tree: %v, want fs.ErrNotExist", err)
	}
	if _, err := root.ReadLinked("folder", 100); err == nil {
		t.Error("ReadLinked of a folder is no error")
	}
	if _, err := root.ReadLinked("absolute", 5); err == nil {
		t.Error("ReadLinked of too much is no error")
	}
}
