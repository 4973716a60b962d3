package main

import (
	"bytes"
	"os"
	"testing"

	"unbounded/internal/durable"
	"unbounded/internal/journal"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
)

func TestRemove(t *testing.T) {
	root := t.TempDir()
	write := func(path string) {
		if err := durable.Replace(paths.At(root, path), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(paths.Config)
	gone := []string{
		paths.Applied("kube1"), paths.Applied("kube1") + ".sha256", paths.Active("kube1"), paths.Applied("kube2"), paths.Active("kube2"),
		paths.ConfigDir + "/" + durable.TempName("kube1-applied-config.json"),
	}
	for _, path := range gone {
		write(path)
	}
	var out bytes.Buffer
	env := &stage.Env{Root: root, Log: journal.To(&out)}
	if err := remove(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	for _, path := range gone {
		if _, err := os.Lstat(paths.At(root, path)); !os.IsNotExist(err) {
			t.Errorf("%s: %v, want it gone", path, err)
		}
	}
	if _, err := os.Lstat(paths.At(root, paths.Config)); err != nil {
		t.Errorf("the operator's configuration: %v", err)
	}
	out.Reset()
	if err := remove(t.Context(), env); err != nil || out.Len() > 0 {
		t.Errorf("the second remove() = %v, said %q, want nothing to do", err, &out)
	}
}
