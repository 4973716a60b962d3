package failure

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if _, err := Read(root); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("Read() without a note = %v, want fs.ErrNotExist", err)
	}
	want := Failure{
		Stage: "unbounded-kernel", Unit: "unbounded-kernel.service", Cause: "load br_netfilter: no such module",
		Status: 78, Time: time.Date(2026, 11, 30, 12, 0, 0, 5000, time.UTC), InvocationID: "ab", InstallID: "cd",
	}
	if err := Write(root, want); err != nil {
		t.Fatal(err)
	}
	got, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	info, err := os.Stat(paths.At(root, paths.LastFailure))
	if err != nil || info.Mode() != 0o644 {
		t.Errorf("mode is %v, %v, want 0644", info.Mode(), err)
	}
}

func TestReadDamaged(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := durable.Replace(paths.At(root, paths.LastFailure), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(root); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read() of half a note = %v, want another error", err)
	}
}
