// Package content is the content-addressed store of blobs: image layers and node binaries.
//
// A blob is there under its digest only when all its bytes were verified and synced;
// what broke off waits as a partial file and is gone on from. A power cut may still
// damage a blob, so who uses one verifies it again, and calls Delete when it is not
// right. The whole store is safe to delete: everything in it can be fetched again.
package content

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/gofrs/flock"

	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/tree"
)

// Store is the store in a folder.
type Store struct {
	dir  string
	lock *flock.Flock

	mu   sync.Mutex
	busy map[string]*sync.Mutex // by digest
}

// Blob is content by its digest.
type Blob struct {
	SHA256 string // hex
	Size   int64  // -1 when unknown
}

// ErrCorrupt is in the chain when a blob in the store is not what its name says.
var ErrCorrupt = errors.New("blob is corrupt")

// Open makes the store in dir, takes its lock, and removes what killed writers left.
// Somebody else's lock is an error with status exit.Held.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir, lock: flock.New(filepath.Join(dir, ".lock")), busy: map[string]*sync.Mutex{}}
	for _, sub := range []string{s.blobs(), s.partials()} {
		if err := durable.MkdirAll(sub, 0o700); err != nil {
			return nil, fmt.Errorf("open content store: %w", err)
		}
	}
	got, err := s.lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock content store: %w", err)
	}
	if !got {
		return nil, exit.As(exit.Held, fmt.Errorf("content store %s is in use by another build of a root file system", dir))
	}
	return s, nil
}

// Close lets go of the lock.
func (s *Store) Close() error { return s.lock.Close() }

// Dir is the folder of the store.
func (s *Store) Dir() string { return s.dir }

func (s *Store) blobs() string    { return filepath.Join(s.dir, "blobs", "sha256") }
func (s *Store) partials() string { return filepath.Join(s.dir, "partial") }

// Path is where the blob is, once it is there.
func (s *Store) Path(sha string) string { return filepath.Join(s.blobs(), sha) }

// Partial is where the blob's bytes are collected.
func (s *Store) Partial(sha string) string { return filepath.Join(s.partials(), sha) }

// Claim waits until nobody else in this process fetches the blob, and keeps others from it until done is called. Things with
// different names may have the same bytes, and so the same partial file.
func (s *Store) Claim(sha string) (done func()) {
	s.mu.Lock()
	one := s.busy[sha]
	if one == nil {
		one = &sync.Mutex{}
		s.busy[sha] = one
	}
	s.mu.Unlock()
	one.Lock()
	return one.Unlock
}

// Has tells whether the blob is there with its size. It does not read it.
func (s *Store) Has(b Blob) bool {
	info, err := os.Lstat(s.Path(b.SHA256))
	return err == nil && info.Mode().IsRegular() && (b.Size < 0 || info.Size() == b.Size)
}

// Missing is the part of blobs that is not there, each once, and how many bytes of it must still come.
func (s *Store) Missing(blobs []Blob) (missing []Blob, bytes int64) {
	seen := map[string]bool{}
	for _, b := range blobs {
		if seen[b.SHA256] || s.Has(b) {
			continue
		}
		seen[b.SHA256] = true
		missing = append(missing, b)
		if b.Size > 0 {
			bytes += b.Size
		}
		if info, err := os.Lstat(s.Partial(b.SHA256)); err == nil {
			bytes -= min(info.Size(), max(b.Size, 0))
		}
	}
	return missing, bytes
}

// Get returns the bytes of a small blob, verified. A corrupt one is deleted and is ErrCorrupt.
func (s *Store) Get(b Blob, limit int64) ([]byte, error) {
	file, err := os.Open(s.Path(b.SHA256))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != b.SHA256 {
		return nil, errors.Join(fmt.Errorf("%w: %s", ErrCorrupt, file.Name()), s.Delete(b.SHA256))
	}
	return data, nil
}

// Put stores the bytes of r as blob, verified.
func (s *Store) Put(ctx context.Context, b Blob, r io.Reader) (err error) {
	name := s.Partial(b.SHA256)
	file, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(file, hash), &reader{ctx, r})
	switch got := hex.EncodeToString(hash.Sum(nil)); {
	case err != nil:
	case b.Size >= 0 && n != b.Size:
		err = fmt.Errorf("blob sha256:%s: %d bytes, want %d", b.SHA256, n, b.Size)
	case got != b.SHA256:
		err = fmt.Errorf("blob sha256:%s: its bytes have sha256 %s", b.SHA256, got)
	default:
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return durable.Rename(name, s.Path(b.SHA256))
}

// reader ends with the context.
type reader struct {
	ctx context.Context //nolint:containedctx // the life of one copy
	io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// Delete removes the blob, if it is there.
func (s *Store) Delete(sha string) error {
	if raw, err := hex.DecodeString(sha); err != nil || len(raw) != sha256.Size {
		return fmt.Errorf("delete blob: %q is no digest", sha)
	}
	_, err := durable.Remove(s.Path(sha))
	return err
}

// Sweep removes everything from the store but the files named in keep: blobs, finished or partial, and notes.
func (s *Store) Sweep(keep map[string]bool) error {
	var problems []error
	for _, dir := range []string{s.dir, filepath.Dir(s.blobs()), s.blobs(), s.partials()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, err)
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			switch {
			case path == s.partials(), path == s.blobs(), path == filepath.Dir(s.blobs()), path == s.lock.Path():
			case keep[entry.Name()] && entry.Type().IsRegular():
			default:
				problems = append(problems, tree.Remove(path)) // not across a mount
			}
		}
	}
	return errors.Join(problems...)
}

// Note reads a small text that was kept under name, "" when there is none.
func (s *Store) Note(name string) string {
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		return "" // a note saves work, it is never needed
	}
	return string(data)
}

// SetNote keeps a small text under name; "" removes it.
func (s *Store) SetNote(name, text string) error {
	path := filepath.Join(s.dir, name)
	if text == "" {
		_, err := durable.Remove(path)
		return err
	}
	_, err := durable.Write(path, []byte(text), 0o600)
	return err
}

// Each calls do for every item, at most width at a time. The first error cancels the rest.
func Each[T any](ctx context.Context, width int, items []T, do func(context.Context, T) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slots := make(chan struct{}, width)
	var group sync.WaitGroup
	for _, item := range items {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			if err := do(ctx, item); err != nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}
