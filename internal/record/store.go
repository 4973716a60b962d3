package record

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

// ErrNone says that there is no record: nobody's installation.
var ErrNone = errors.New("no install record")

// ErrExists says that a record to be created is there already: another start was faster.
var ErrExists = errors.New("an install record exists")

// maxSize is far more than any record has.
const maxSize = 1 << 20

// Store is the record on disk and the short lock that serialises its changes.
type Store struct {
	path string
	lock string
	// syncDir is durable.SyncDir; a test makes it fail.
	syncDir func(string) error
}

// Open returns the store of the host whose root is root ("/" for this one).
func Open(root string) *Store {
	return &Store{
		path:    paths.At(root, paths.Record),
		lock:    paths.At(root, paths.RecordLock),
		syncDir: durable.SyncDir,
	}
}

// Load reads the record. Without one the error is ErrNone; one that cannot be used has ErrInvalid in its chain.
func (s *Store) Load() (Record, error) {
	data, err := durable.Read(s.path, maxSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Record{}, ErrNone
	case errors.Is(err, durable.ErrNotFile):
		return Record{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	case err != nil:
		return Record{}, err
	}
	r, err := Parse(data)
	if err != nil {
		return Record{}, fmt.Errorf("%s: %w", s.path, err)
	}
	return r, nil
}

// Create writes the first record of an installation, durably. With a record there it is ErrExists.
func (s *Store) Create(ctx context.Context, r Record) error {
	return s.locked(ctx, func() error {
		switch _, err := s.Load(); {
		case err == nil:
			return ErrExists
		case !errors.Is(err, ErrNone):
			return err
		}
		return s.save(r)
	})
}

// Update loads the record, lets change edit it, and writes it durably if anything differs.
// An error of change is returned as it is, and nothing is written.
func (s *Store) Update(ctx context.Context, change func(*Record) error) (Record, error) {
	var r Record
	err := s.locked(ctx, func() error {
		was, err := s.Load()
		if err != nil {
			return err
		}
		r = was
		if err := change(&r); err != nil {
			return err
		}
		if r.equal(was) {
			return nil
		}
		return s.save(r)
	})
	return r, err
}

// Alone runs do while nobody else changes the record: for what is written beside it by several starts at once.
func (s *Store) Alone(ctx context.Context, do func() error) error { return s.locked(ctx, do) }

// Retire makes the phase Resetting, durably. A record that is absent or cannot be read gives way to a synthetic
// one, with prefix; why then says what was wrong. An error means that the host may still be as it was.
func (s *Store) Retire(ctx context.Context, prefix string) (r Record, why, err error) {
	err = s.locked(ctx, func() error {
		was, loadErr := s.Load()
		if loadErr != nil {
			why = loadErr
			was = synthetic(prefix)
			if err := s.clear(); err != nil {
				return err
			}
		}
		r = was
		r.Phase = Resetting
		if loadErr == nil && r.equal(was) {
			return nil
		}
		return s.save(r)
	})
	return r, why, err
}

// synthetic stands for an installation that nobody can name any more: of an agent that wrote no
// record, or one whose record was damaged. The names are the public agent's.
func synthetic(prefix string) Record {
	r := New(Identity{})
	r.MachineName, r.ConfigFingerprint, r.Inputs = legacyReset, legacyReset, Inputs{}
	r.Prefix = prefix
	return r
}

const legacyReset = "legacy-reset"

// clear takes away what is no file and so could not be replaced by one.
func (s *Store) clear() error {
	info, err := os.Lstat(s.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Remove(s.path); err != nil {
		return fmt.Errorf("the install record is a folder: %w; move it away", err)
	}
	return nil
}

// Remove removes the record durably; an absent one is ErrNone. If the removal cannot be
// made durable the record is written back, so that the host stays visibly owned.
// A record that does not parse is removed too, and not restored.
func (s *Store) Remove(ctx context.Context) error {
	return s.locked(ctx, func() error {
		r, loadErr := s.Load()
		if loadErr != nil && !errors.Is(loadErr, ErrInvalid) {
			return loadErr
		}
		// Commit point.
		if err := os.Remove(s.path); err != nil {
			return err
		}
		err := s.syncDir(filepath.Dir(s.path))
		if err == nil || loadErr != nil {
			return err
		}
		return errors.Join(fmt.Errorf("remove %s durably: %w", s.path, err), s.save(r))
	})
}

func (s *Store) save(r Record) error {
	data, err := r.Marshal()
	if err != nil {
		return err
	}
	if err := durable.SweepFor(s.path); err != nil { // the lock is held: nobody else writes
		return err
	}
	return durable.Replace(s.path, data, 0o600)
}

// locked runs do under the record lock, which is held for microseconds: a context without an end gets one.
func (s *Store) locked(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := durable.MkdirAll(filepath.Dir(s.lock), 0o755); err != nil {
		return err
	}
	lock := flock.New(s.lock)
	if _, err := lock.TryLockContext(ctx, 2*time.Millisecond); err != nil {
		return errors.Join(fmt.Errorf("lock %s: %w", s.lock, err), lock.Close())
	}
	return errors.Join(do(), lock.Close())
}
