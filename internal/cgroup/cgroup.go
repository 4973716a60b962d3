// Package cgroup reads the cgroups (version 2) of a host's units.
package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// mounts are where a host's hierarchy is: alone, or beside version 1.
var mounts = [...]string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// Populated tells whether any process is in one of groups or below, as units name them ("/machine.slice/x").
// A group that is not there, and the empty name, are empty.
func Populated(groups ...string) (bool, error) { return populated(mounts[:], groups) }

// AwaitEmpty waits until no process is left in group or below. It asks again and again: of a group that is
// removed the kernel sends no event.
func AwaitEmpty(ctx context.Context, group string) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		full, err := Populated(group)
		if err != nil || !full {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for cgroup %s to be empty: %w", group, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func populated(mounts, groups []string) (bool, error) {
	for _, mount := range mounts {
		for _, group := range groups {
			if group == "" {
				continue
			}
			full, err := events(filepath.Join(mount, group, "cgroup.events"))
			if full || err != nil {
				return full, err
			}
		}
	}
	return false, nil
}

// events reads a cgroup.events file. The group may go away meanwhile.
func events(path string) (bool, error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENOTDIR):
		return false, nil
	case err != nil:
		return false, err
	}
	for line := range bytes.Lines(data) {
		if string(bytes.TrimSpace(line)) == "populated 1" {
			return true, nil
		}
	}
	return false, nil
}

// Leader is the process id of PID 1 of the machine that the nspawn unit with cgroup group runs: the process
// in the init.scope that it made.
func Leader(group string) (int, error) { return leader(mounts[:], group) }

func leader(mounts []string, group string) (int, error) {
	for _, mount := range mounts {
		data, err := os.ReadFile(filepath.Join(mount, group, "payload/init.scope/cgroup.procs"))
		if err != nil {
			continue
		}
		for pid := range strings.FieldsSeq(string(data)) {
			return strconv.Atoi(pid)
		}
	}
	return 0, fmt.Errorf("cgroup %s has no init.scope of a machine", group)
}
