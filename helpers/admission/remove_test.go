package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"unbounded/internal/durable"
	"unbounded/internal/journal"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
)

func TestRemove(t *testing.T) {
	root := t.TempDir()
	left := map[string]bool{ // and whether it is to be there afterwards
		paths.Complete: false, paths.Admitted: false, paths.LastFailure: false, paths.RecordLock: true,
		paths.Record: true, paths.Config: true, paths.State + "/of-somebody-else": true,
		paths.RunSlot + "/" + durable.TempName("kube1"): false, paths.Restart + "/kube1.kubelet.claimed": false,
		paths.Run + "/" + durable.TempName("admitted.json"):        false,
		paths.ConfigDir + "/" + durable.TempName("x.json"):         false,
		paths.State + "/" + durable.TempName("install-state.json"): false,
	}
	for path := range left {
		if err := durable.Replace(paths.At(root, path), []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{paths.RunSlot, paths.Restart} {
		if err := os.MkdirAll(paths.At(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	env := &stage.Env{Root: root, Log: journal.To(&out)}
	if err := remove(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !left[strings.TrimPrefix(path, root)] {
			t.Errorf("%s is still there", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, stays := range left {
		if _, err := os.Lstat(paths.At(root, path)); stays && err != nil {
			t.Errorf("%v, want it left alone", err)
		}
	}
	out.Reset()
	if err := remove(t.Context(), env); err != nil || out.Len() > 0 {
		t.Errorf("the second remove() = %v, said %q, want nothing to do", err, &out)
	}
}

// A link in the place of a folder goes, and not what it leads to; a folder in the place of a file is named.
func TestRemoveIsNotLed(t *testing.T) {
	root := t.TempDir()
	const theirs, folder = "/srv/theirs", paths.Admitted + "/x"
	for _, path := range []string{theirs + "/kube1.kubelet", folder} {
		if err := durable.Replace(paths.At(root, path), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(paths.At(root, theirs), paths.At(root, paths.Restart)); err != nil {
		t.Fatal(err)
	}
	env := &stage.Env{Root: root, Log: journal.To(&bytes.Buffer{})}
	if err := remove(t.Context(), env); err == nil || !strings.Contains(err.Error(), paths.Admitted) || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("remove() = %v, want %s and the remedy named", err, paths.Admitted)
	}
	if err := os.RemoveAll(paths.At(root, paths.Admitted)); err != nil {
		t.Fatal(err)
	}
	if err := remove(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(paths.At(root, theirs+"/kube1.kubelet")); err != nil {
		t.Errorf("what a link leads to: %v, want it kept", err)
	}
	if _, err := os.Lstat(paths.At(root, paths.Restart)); !os.IsNotExist(err) {
		t.Errorf("the link: %v, want it gone", err)
	}
}
