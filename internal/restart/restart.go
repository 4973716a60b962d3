// Package restart remembers which services of a machine have to be restarted because their files changed.
//
// The node stage marks a service before it writes the first of its files, so that a kill
// in between loses nothing, and again after the last, so that a machine stage which took
// the first mark meanwhile, and restarted too early, is made to do it again. The machine
// stage claims the mark, restarts, and only then forgets it: a mark that comes while the
// restart runs is another one, and a claim that a kill left behind counts as a mark.
//
// Marks are in /run: after a reboot of the host the machine has started anew anyway.
package restart

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

// Mark is that service ("containerd", "kubelet") of slot has files it was not started with.
type Mark struct {
	mark, claim string
}

// Of is the mark of service in slot on the host below root.
func Of(root, slot, service string) Mark {
	path := paths.At(root, paths.Restart) + "/" + slot + "." + service
	return Mark{path, path + ".claimed"}
}

// Set marks the service. A mark that is there already is left alone.
func (m Mark) Set() error {
	if _, err := durable.Mark(m.mark); err != nil {
		return fmt.Errorf("mark for restart: %w", err)
	}
	return nil
}

// Claim takes the mark and tells whether there was one, or a claim that nobody finished.
func (m Mark) Claim() (bool, error) {
	err := durable.Rename(m.mark, m.claim)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Lstat(m.claim)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
	}
	if err != nil {
		return false, fmt.Errorf("claim restart mark: %w", err)
	}
	return true, nil
}

// Pending tells whether there is a mark or an unfinished claim.
func (m Mark) Pending() (bool, error) {
	for _, path := range []string{m.mark, m.claim} {
		switch _, err := os.Lstat(path); {
		case err == nil:
			return true, nil
		case !errors.Is(err, fs.ErrNotExist):
			return false, fmt.Errorf("look for restart mark: %w", err)
		}
	}
	return false, nil
}

// Done forgets what was claimed: the service has restarted.
func (m Mark) Done() error {
	if _, err := durable.Remove(m.claim); err != nil {
		return fmt.Errorf("forget restart mark: %w", err)
	}
	return nil
}
