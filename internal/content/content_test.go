package content

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"unbounded/internal/exit"
	"unbounded/internal/ocitest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "oci"))
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func of(text string) Blob { return Blob{ocitest.Sum([]byte(text)), int64(len(text))} }

func TestPut(t *testing.T) {
	for _, test := range []struct {
		name, bytes string
		blob        Blob
		err         string
	}{
		{"right", "hello", of("hello"), ""},
		{"size unknown", "hello", Blob{of("hello").SHA256, -1}, ""},
		{"other bytes", "hellO", of("hello"), "its bytes have sha256"},
		{"shorter", "hell", of("hello"), "4 bytes, want 5"},
		{"longer", "hello!", of("hello"), "6 bytes, want 5"},
	} {
		s := open(t)
		err := s.Put(t.Context(), test.blob, strings.NewReader(test.bytes))
		if (err == nil) != (test.err == "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%s: Put = %v, want %q", test.name, err, test.err)
		}
		if s.Has(test.blob) != (test.err == "") {
			t.Errorf("%s: Has = %v", test.name, s.Has(test.blob))
		}
		if left, _ := os.ReadDir(filepath.Dir(s.Partial("x"))); len(left) != 0 {
			t.Errorf("%s: left %v", test.name, left)
		}
	}
}

func TestGetDeletesWhatRotted(t *testing.T) {
	s := open(t)
	b := of("hello")
	must(t, s.Put(t.Context(), b, strings.NewReader("hello")))
	data, err := s.Get(b, 100)
	if err != nil || string(data) != "hello" {
		t.Fatalf("Get = %q, %v", data, err)
	}
	must(t, os.WriteFile(s.Path(b.SHA256), []byte("hellO"), 0o600))
	if _, err := s.Get(b, 100); !errors.Is(err, ErrCorrupt) || s.Has(b) {
		t.Errorf("Get = %v, and it is there: %v", err, s.Has(b))
	}
}

func TestMissing(t *testing.T) {
	s := open(t)
	a, b, c := of("aaaa"), of("bbbb"), of("cccc")
	must(t, s.Put(t.Context(), a, strings.NewReader("aaaa")))
	must(t, os.WriteFile(s.Partial(b.SHA256), []byte("b"), 0o600))
	must(t, os.WriteFile(s.Path(c.SHA256), []byte("short"), 0o600))
	missing, bytes := s.Missing([]Blob{a, b, b, c})
	if !slices.Equal(missing, []Blob{b, c}) || bytes != 7 {
		t.Errorf("Missing = %v, %d, want b and c, 7", missing, bytes)
	}
}

func TestSweep(t *testing.T) {
	s := open(t)
	a := of("a")
	must(t, s.Put(t.Context(), a, strings.NewReader("a")))
	must(t, s.Put(t.Context(), of("b"), strings.NewReader("b")))
	must(t, os.WriteFile(s.Partial(a.SHA256), nil, 0o600))
	must(t, os.WriteFile(s.Partial("other"), nil, 0o600))
	must(t, s.SetNote("kept", "x"))
	must(t, s.SetNote("dropped", "x"))
	must(t, os.MkdirAll(filepath.Join(s.Dir(), "blobs/sha512"), 0o700))
	must(t, os.MkdirAll(filepath.Join(s.Dir(), "ingest/deep"), 0o700))
	must(t, s.Sweep(map[string]bool{a.SHA256: true, "kept": true}))
	var left []string
	_ = filepath.WalkDir(s.Dir(), func(path string, entry os.DirEntry, _ error) error {
		if !entry.IsDir() {
			name, _ := filepath.Rel(s.Dir(), path)
			left = append(left, name)
		}
		return nil
	})
	want := []string{".lock", "blobs/sha256/" + a.SHA256, "kept", "partial/" + a.SHA256}
	if !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
}

func TestLock(t *testing.T) {
	s := open(t)
	if _, err := Open(s.Dir()); exit.Of(err) != exit.Held {
		t.Errorf("second Open = %v", err)
	}
	must(t, s.Close())
	again, err := Open(s.Dir())
	must(t, err)
	must(t, again.Close())
}

func TestEach(t *testing.T) {
	var now, most, done atomic.Int64
	err := Each(t.Context(), 3, make([]int, 50), func(context.Context, int) error {
		for n := now.Add(1); ; {
			if seen := most.Load(); n <= seen || most.CompareAndSwap(seen, n) {
				break
			}
		}
		done.Add(1)
		now.Add(-1)
		return nil
	})
	if err != nil || done.Load() != 50 || most.Load() > 3 {
		t.Errorf("Each = %v, %d done, %d at a time", err, done.Load(), most.Load())
	}
	failure := errors.New("first")
	done.Store(0)
	err = Each(t.Context(), 1, make([]int, 50), func(context.Context, int) error {
		if done.Add(1) == 3 {
			return failure
		}
		return nil
	})
	if !errors.Is(err, failure) || done.Load() != 3 {
		t.Errorf("Each = %v after %d", err, done.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Each(ctx, 2, make([]int, 5), func(context.Context, int) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("Each = %v", err)
	}
}
