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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// mounts are where a host's hierarchy is: alone, or beside version 1.
var mounts = [...]string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// Machine is the group of a machine's unit, where the template of nspawn's units puts it.
func Machine(unit string) string { return "/machine.slice/" + unit }

// Populated tells whether any process is in one of groups or below, as units name them ("/machine.slice/x").
// A group that is not there, and the empty name, are empty.
func Populated(groups ...string) (bool, error) { return populated(mounts[:], groups) }

// AwaitEmpty waits until no process is left in groups or below. It asks again and again: of a group that is
// removed the kernel sends no event.
func AwaitEmpty(ctx context.Context, groups ...string) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		full, err := Populated(groups...)
		if err != nil || !full {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for cgroup %s to be empty: %w", strings.Join(groups, " "), context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// Kill kills all processes in groups and below, at once. A group that is not there has none.
func Kill(groups ...string) error { return kill(mounts[:], groups) }

func kill(mounts, groups []string) error {
	for _, mount := range mounts {
		for _, group := range groups {
			if group == "" {
				continue
			}
			file, err := os.OpenFile(filepath.Join(mount, group, "cgroup.kill"), os.O_WRONLY, 0) // since Linux 5.14
			if err == nil {
				_, err = file.WriteString("1")
				err = errors.Join(err, file.Close())
			}
			if err != nil && !gone(err) {
				return err
			}
		}
	}
	return nil
}

// Processes names the processes in groups and below for a message, as far as they can be read.
func Processes(groups ...string) []string { return processes("/proc", mounts[:], groups) }

func processes(proc string, mounts, groups []string) []string {
	var names []string
	for _, mount := range mounts {
		for _, group := range groups {
			if group == "" {
				continue
			}
			_ = filepath.WalkDir(filepath.Join(mount, group), func(path string, _ fs.DirEntry, err error) error {
				if err != nil || filepath.Base(path) != "cgroup.procs" {
					return nil //nolint:nilerr // what is gone has no processes
				}
				pids, _ := os.ReadFile(path)
				for pid := range strings.FieldsSeq(string(pids)) {
					name, _ := os.ReadFile(filepath.Join(proc, pid, "comm"))
					names = append(names, fmt.Sprintf("%s (%s)", pid, bytes.TrimSpace(name)))
				}
				return nil
			})
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(names)))
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
	case gone(err):
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

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENOTDIR)
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
