// Package dockerd keeps the host's docker from writing packet-filter rules, should somebody let it run after all.
package dockerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"unbounded/internal/before"
	"unbounded/internal/durable"
	"unbounded/internal/jsonkey"
	"unbounded/internal/paths"
)

// File is docker's configuration; Key is what is set in it, to Value.
const (
	File  = "/etc/docker/daemon.json"
	Key   = "iptables"
	Value = "false"
)

// Find returns the change that sets the key: of kind File where there is no file, otherwise of kind Key. A file that is no
// JSON object is an error: docker cannot read it either.
func Find(root string) (before.Change, error) {
	data, err := os.ReadFile(paths.At(root, File))
	if errors.Is(err, fs.ErrNotExist) {
		return before.FileChange(root, File, fmt.Sprintf("{\n  %q: %s\n}\n", Key, Value))
	}
	if err != nil {
		return before.Change{}, err
	}
	value, found, err := jsonkey.Get(data, Key)
	if err != nil {
		return before.Change{}, fmt.Errorf("read %s: %w", File, err)
	}
	change := before.Change{Kind: before.Key, Object: File + ":" + Key, Now: before.Gone(), Want: before.Text(Value)}
	if found {
		change.Now = before.Text(value)
	}
	return change, nil
}

// Apply sets the key in the file, whose other bytes stay as they are.
func Apply(root string) (changed bool, err error) {
	path := paths.At(root, File)
	data, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	edited, err := jsonkey.Set(data, Key, Value)
	if err != nil {
		return false, fmt.Errorf("read %s: %w", File, err)
	}
	return durable.Rewrite(path, edited)
}

// Now is how the key is at present. What docker cannot read has become
// somebody else's.
func Now(root string) (before.State, error) {
	data, err := os.ReadFile(paths.At(root, File))
	if errors.Is(err, fs.ErrNotExist) {
		return before.Gone(), nil
	}
	if err != nil {
		return before.State{}, err
	}
	value, found, err := jsonkey.Get(data, Key)
	switch {
	case err != nil:
		return before.Text(err.Error()), nil
	case !found:
		return before.Gone(), nil
	}
	return before.Text(value), nil
}

// Restore gives the key of e back as it was; the other bytes of the file stay as they are.
func Restore(root string, e before.Entry) (changed bool, err error) {
	path := paths.At(root, File)
	data, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	if e.Before.Absent {
		data, _, err = jsonkey.Unset(data, Key, Value)
	} else {
		data, err = jsonkey.Set(data, Key, e.Before.Value)
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", File, err)
	}
	return durable.Rewrite(path, data)
}
