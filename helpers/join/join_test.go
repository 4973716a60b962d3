package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/journal"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/tree"
)

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// snapshot is every file below root with mode, time and content.
func snapshot(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		content := ""
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(data)
		}
		name, _ := filepath.Rel(root, path)
		files["/"+name] = strings.Join([]string{info.Mode().String(), info.ModTime().String(), content}, " ")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

const built = "{\"MachineName\": \"m1\"}\n"

func checksum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func ground(t *testing.T) (*stage.Env, *tree.Root) {
	t.Helper()
	env := &stage.Env{Root: t.TempDir(), Slot: "kube1", Log: journal.To(io.Discard)}
	put(t, paths.At(env.Root, paths.Tree("kube1")+paths.Built), built)
	root, err := tree.Open(paths.At(env.Root, paths.Tree("kube1")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return env, root
}

func TestPromote(t *testing.T) {
	for _, test := range []struct {
		name   string
		before map[string]string
		absent []string
	}{
		{name: "first"},
		{name: "killed after the configuration", before: map[string]string{paths.Applied("kube1"): built}},
		{name: "killed before the marker", before: map[string]string{paths.Applied("kube1"): built, paths.Applied("kube1") + ".sha256": "old\n"}},
		{name: "built anew", before: map[string]string{paths.Applied("kube1"): "{}", paths.Applied("kube1") + ".sha256": "old\n", paths.Active("kube1"): ""}},
		{name: "the node ran in the other slot", before: map[string]string{paths.Active("kube2"): ""}, absent: []string{paths.Active("kube2")}},
		{name: "two markers", before: map[string]string{paths.Active("kube1"): "", paths.Active("kube2"): ""}, absent: []string{paths.Active("kube2")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			env, root := ground(t)
			for path, content := range test.before {
				put(t, paths.At(env.Root, path), content)
			}
			if err := promote(env, root); err != nil {
				t.Fatal(err)
			}
			want := map[string]string{
				paths.Applied("kube1"):             built,
				paths.Applied("kube1") + ".sha256": checksum(built) + "\n",
				paths.Active("kube1"):              "",
			}
			for path, content := range want {
				data, err := os.ReadFile(paths.At(env.Root, path))
				if err != nil || string(data) != content {
					t.Errorf("%s = %q, %v, want %q", path, data, err, content)
				}
				if info, err := os.Stat(paths.At(env.Root, path)); err != nil || info.Mode() != 0o600 {
					t.Errorf("%s: mode %v, %v, want 0600", path, info.Mode(), err)
				}
			}
			for _, path := range test.absent {
				if _, err := os.Lstat(paths.At(env.Root, path)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is there: %v", path, err)
				}
			}
			once := snapshot(t, env.Root)
			if err := promote(env, root); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(once, snapshot(t, env.Root)); diff != "" {
				t.Errorf("the second run changed something:\n%s", diff)
			}
		})
	}
}

func TestPromoteNothingBuilt(t *testing.T) {
	env, root := ground(t)
	if err := os.Remove(paths.At(env.Root, paths.Tree("kube1")+paths.Built)); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, env.Root)
	if err := promote(env, root); err == nil || !strings.Contains(err.Error(), paths.Target) {
		t.Errorf("promote: %v, want an error that says what to start", err)
	}
	if diff := cmp.Diff(before, snapshot(t, env.Root)); diff != "" {
		t.Error(diff)
	}
}
