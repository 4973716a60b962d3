package mounts

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"unbounded/internal/proc"
)

// named is how many holders of a mount a message names.
const named = 4

// Holders are, in words, who uses the mount: processes that work in it or have a file of it open or mapped, and
// loop devices on a file in it. It is for messages: what cannot be read is left out.
func (t Table) Holders(m Mount) []string {
	var found []string
	pids, _ := filepath.Glob(t.Proc + "/[0-9]*") // the pattern is valid
	for _, dir := range pids {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if how := uses(dir, m); how != "" {
			found = append(found, t.process(pid)+" ("+how+")")
		}
		if len(found) == named {
			return append(found, "and maybe more")
		}
	}
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // the same
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err == nil && within(strings.TrimSuffix(string(data), "\n"), m.Point) {
			found = append(found, "/dev/"+strings.Split(file, "/")[3])
		}
	}
	return found
}

func (t Table) process(pid int) string {
	name, _ := os.ReadFile(fmt.Sprintf("%s/%d/comm", t.Proc, pid)) // a name less in the message
	text := fmt.Sprintf("pid %d %s", pid, strings.TrimSpace(string(name)))
	if unit := proc.Unit(t.Proc, pid); unit != "" {
		text += " of " + unit
	}
	return text
}

// uses says what the process at dir has of the mount, empty for nothing.
func uses(dir string, m Mount) string {
	for _, name := range []string{"cwd", "root", "exe"} {
		if on(dir+"/"+name, m) {
			return name
		}
	}
	fds, _ := filepath.Glob(dir + "/fd/*") // the pattern is valid
	for _, fd := range fds {
		if on(fd, m) {
			target, _ := os.Readlink(fd) // a name less in the message
			return fmt.Sprintf("has %q open", target)
		}
	}
	maps, _ := os.ReadFile(dir + "/maps") // a holder less in the message
	for line := range strings.Lines(string(maps)) {
		const columns = 6
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", columns)
		if len(fields) < columns {
			continue
		}
		if path := proc.Unescape(strings.TrimLeft(fields[columns-1], " ")); within(path, m.Point) {
			return fmt.Sprintf("has %q mapped", path)
		}
	}
	return ""
}

// on tells whether a link of /proc leads to the mount, or to its like in another mount namespace, where it
// keeps this one busy too.
func on(link string, m Mount) bool {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &stat)
	if err == nil && stat.Mask&unix.STATX_MNT_ID != 0 && stat.Mnt_id == uint64(m.ID) {
		return true
	}
	target, err := os.Readlink(link)
	return err == nil && (target == m.Point || within(target, m.Point))
}
