package lock

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
)

func TestTake(t *testing.T) {
	for _, test := range []struct {
		name   string
		first  Mode
		second Mode
		ok     bool
	}{
		{"stages run side by side", Shared, Shared, true},
		{"reset keeps stages out", Exclusive, Shared, false},
		{"stages keep reset out", Shared, Exclusive, false},
		{"one reset", Exclusive, Exclusive, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			first, err := Take(root, test.first)
			if err != nil {
				t.Fatal(err)
			}
			second, err := Take(root, test.second)
			var held *HeldError
			if test.ok != (err == nil) || (!test.ok && !errors.As(err, &held)) {
				t.Fatalf("second Take() = %v, want success = %v or a HeldError", err, test.ok)
			}
			if second != nil {
				if err := second.Release(); err != nil {
					t.Fatal(err)
				}
			}
			if err := first.Release(); err != nil {
				t.Fatal(err)
			}
			again, err := Take(root, Exclusive)
			if err != nil {
				t.Fatalf("Take() after the release = %v: a leftover file is not a held lock", err)
			}
			if err := again.Release(); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(paths.At(root, paths.Lock)); err != nil || info.Mode() != 0o600 {
				t.Errorf("lock file: %v, %v, want it kept with mode 0600", info, err)
			}
		})
	}
}

func TestLook(t *testing.T) {
	root := t.TempDir()
	if err := Look(root); err != nil {
		t.Errorf("Look() without a lock = %v", err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		t.Errorf("Look() made %v, %v", entries, err)
	}
	for mode, ok := range map[Mode]bool{Shared: true, Exclusive: false} {
		held, err := Take(root, mode)
		if err != nil {
			t.Fatal(err)
		}
		_, other := errors.AsType[*HeldError](Look(root))
		if other == ok {
			t.Errorf("Look() beside mode %v: held by another %v, want %v", mode, other, !ok)
		}
		if err := held.Release(); err != nil {
			t.Fatal(err)
		}
	}
}

// A holder is found by its descriptor: /proc/locks would miss this child, which inherited it.
func TestHeldErrorNamesHolder(t *testing.T) {
	root := t.TempDir()
	path := paths.At(root, paths.Lock)
	if err := os.MkdirAll(paths.At(root, "/run"), 0o755); err != nil {
		t.Fatal(err)
	}
	holder := exec.Command("flock", "--exclusive", path, "sh", "-c", "echo held; read _")
	in, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = holder.Wait()
	})
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	// Take asks the /proc below its root; the message is what counts here.
	got := (&HeldError{path, Holders("/proc", path)}).Error()
	if !strings.Contains(got, "pid ") || !strings.Contains(got, "/flock") && !strings.Contains(got, "sh") {
		t.Errorf("error = %q, want pid and program of the holder", got)
	}
	var held *HeldError
	if _, err := Take(root, Shared); !errors.As(err, &held) {
		t.Errorf("Take() = %v, want a HeldError", err)
	}
}

func TestWait(t *testing.T) {
	root := t.TempDir()
	held, err := Take(root, Shared)
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	_, err = Wait(t.Context(), root, Exclusive, 70*time.Millisecond, func(*HeldError) { told++ })
	var other *HeldError
	if !errors.As(err, &other) || told != 1 {
		t.Fatalf("Wait() for a held lock = %v, told %d times, want a HeldError, told once", err, told)
	}
	timer := time.AfterFunc(50*time.Millisecond, func() {
		if err := held.Release(); err != nil {
			t.Error(err)
		}
	})
	defer timer.Stop()
	got, err := Wait(t.Context(), root, Exclusive, time.Minute, func(*HeldError) {})
	if err != nil {
		t.Fatalf("Wait() for a lock that becomes free = %v", err)
	}
	if err := got.Release(); err != nil {
		t.Error(err)
	}
}
