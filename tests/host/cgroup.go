package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchies are the mount points of cgroup hierarchies, that of version 2 first.
// nspawn makes a cgroup of the same name in each that systemd would use.
func hierarchies() ([]string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var first, rest []string
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(line, " - ")
		kind, _, _ := strings.Cut(after, " ")
		switch kind {
		case "cgroup2":
			first = append(first, strings.Fields(before)[4])
		case "cgroup":
			rest = append(rest, strings.Fields(before)[4])
		}
	}
	if len(first) == 0 {
		return nil, errors.New("no cgroup v2 hierarchy is mounted on this machine; mount one at /sys/fs/cgroup/unified")
	}
	return append(first, rest...), nil
}

// unifiedMount is where this machine has its cgroup v2 hierarchy.
func unifiedMount() (string, error) {
	mounts, err := hierarchies()
	if err != nil {
		return "", err
	}
	return mounts[0], nil
}

// makeCgroup makes the cgroup in which a host and its services live.
func makeCgroup(name string) (string, error) {
	mount, err := unifiedMount()
	if err != nil {
		return "", err
	}
	path := filepath.Join(mount, name)
	for _, folder := range []string{path, filepath.Join(path, "keeper"), filepath.Join(path, "services")} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return "", err
		}
	}
	return path, nil
}

// removeCgroups removes the cgroups of a name with all below them: the kernel takes that only when no process is in
// them any more, deepest first. One that has just been killed, or has entered from outside, may need a moment.
func removeCgroups(name string) error {
	mounts, err := hierarchies()
	if err != nil {
		return err
	}
	const limit = time.Minute // what holds a loop device writes it back in its exit
	for began := time.Now(); ; {
		var left []error
		for _, mount := range mounts {
			left = append(left, removeCgroup(filepath.Join(mount, name)))
		}
		if err := errors.Join(left...); err == nil || time.Since(began) > limit {
			return err
		}
		<-time.After(20 * time.Millisecond)
	}
}

// removeCgroup kills what is in a cgroup, if the kernel can at once, and removes it as far as it can.
func removeCgroup(path string) error {
	if err := killCgroup(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var folders []string
	err := filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			folders = append(folders, path)
		}
		return nil
	})
	for _, folder := range slices.Backward(folders) {
		if e := os.Remove(folder); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// leaderIn finds the PID 1 of the host in its cgroup: it is one PID namespace
// deeper than the keeper, and the machines of the host are deeper still. It begins in the
// first and moves itself to the second.
func leaderIn(cgroup string, keeper int) (int, error) {
	depth := len(namespacePIDs(keeper))
	for _, folder := range []string{"payload", "payload/init.scope"} {
		pids, err := os.ReadFile(filepath.Join(cgroup, folder, "cgroup.procs"))
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(pids)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return 0, err
			}
			inner := namespacePIDs(pid)
			if len(inner) == depth+1 && inner[depth] == "1" {
				return pid, nil
			}
		}
	}
	return 0, fmt.Errorf("no PID 1 of the host in %s", cgroup)
}

// namespacePIDs are the PIDs of a process in its PID namespaces, outermost first.
func namespacePIDs(pid int) []string {
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(status)) {
		if pids, found := strings.CutPrefix(line, "NSpid:"); found {
			return strings.Fields(pids)
		}
	}
	return nil
}

// cgroupOf is the cgroup v2 folder of a process.
func cgroupOf(pid int) (string, error) {
	mount, err := unifiedMount()
	if err != nil {
		return "", err
	}
	lines, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(lines)) {
		if path, found := strings.CutPrefix(line, "0::"); found {
			return filepath.Join(mount, strings.TrimSpace(path)), nil
		}
	}
	return "", fmt.Errorf("process %d has no cgroup v2", pid)
}

// killCgroup kills all that is in a cgroup, at once.
func killCgroup(path string) error {
	file, err := os.OpenFile(filepath.Join(path, "cgroup.kill"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = unix.Write(int(file.Fd()), []byte("1"))
	return errors.Join(err, file.Close())
}
