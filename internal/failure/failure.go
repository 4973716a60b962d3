// Package failure is the note that a failed attempt leaves: /run/unbounded/last-failure.json.
//
// The stage that fails writes it before it exits. A stage that was killed cannot:
// unbounded-failed.service fills in for it.
package failure

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

// Failure says why an attempt ended.
type Failure struct {
	Stage        string    `json:"stage"` // the program, unbounded-kernel
	Unit         string    `json:"unit"`
	Cause        string    `json:"cause"`  // the error line of the stage, without secrets
	Status       int       `json:"status"` // exit status; that of a shell (128 + signal) if it was killed
	Time         time.Time `json:"time"`
	InvocationID string    `json:"invocationID"`
	InstallID    string    `json:"installID,omitempty"`
}

// Write replaces the note on the host below root.
func Write(root string, f Failure) error {
	f.Time = f.Time.UTC()
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("write failure of %s: %w", f.Stage, err)
	}
	return durable.Replace(paths.At(root, paths.LastFailure), append(data, '\n'), 0o644)
}

// Read returns the note of the host below root. Without one fs.ErrNotExist is in the error's chain.
func Read(root string) (Failure, error) {
	path := paths.At(root, paths.LastFailure)
	data, err := os.ReadFile(path)
	if err != nil {
		return Failure{}, err
	}
	var f Failure
	if err := json.Unmarshal(data, &f); err != nil {
		return Failure{}, fmt.Errorf("read %s: %w", path, err)
	}
	return f, nil
}
