package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"unbounded/internal/check"
	"unbounded/internal/paths"
	"unbounded/internal/proc"
)

// writable looks at the folders that the stages write to.
func (h *Host) writable(context.Context) []check.Result {
	var results []check.Result
	for _, path := range []string{"/etc/sysctl.d", paths.SystemdDir, paths.NspawnDir, paths.ConfigDir, paths.State, paths.Content} {
		if result, bad := h.readOnly(path); bad {
			results = append(results, result)
		}
	}
	if len(results) > 0 {
		return results
	}
	return one(check.Pass("/etc, /var/lib/unbounded", "can be written"))
}

// readOnly finds the mount that keeps path from being written or made.
func (h *Host) readOnly(path string) (check.Result, bool) {
	there, stat, err := h.statfs(path)
	switch {
	case err != nil:
		return check.Fail(check.May, path, "%s cannot be looked at: %v", there, err), true
	case stat.Flags&unix.ST_RDONLY == 0:
		return check.Result{}, false
	}
	mount := h.mountName(there)
	return check.Fail(check.May, path, "%s is on a read-only file system, mounted at %s", path, mount).Fix("remount %s read-write, or mount something writable at %s", mount, path), true
}

// executable looks for noexec where programs are run from: our own, those of the machine, and those that an installer stages.
func (h *Host) executable(context.Context) []check.Result {
	var results []check.Result
	for _, path := range []string{h.Prefix, paths.Machines, filepath.Dir(paths.State)} {
		there, stat, err := h.statfs(path)
		if err != nil {
			results = append(results, check.Fail(check.May, path, "%s cannot be looked at: %v", there, err))
			continue
		}
		ours := path != filepath.Dir(paths.State)                        // a stage runs programs from there
		if stat.Flags&unix.ST_NOEXEC == 0 || !ours && len(results) > 0 { // one mount may hold all
			continue
		}
		mount := h.mountName(there)
		result := check.Fail(check.May, path, "%s is mounted noexec, at %s: no program can run from there", path, mount)
		if !ours {
			result = check.Warn(path, "%s is mounted noexec, at %s: install.sh stages programs there, and cannot run them", path, mount)
		}
		results = append(results, result.Fix("remount %s with exec, or put %s on another file system", mount, path))
	}
	if len(results) > 0 {
		return results
	}
	return one(check.Pass(h.Prefix+", "+paths.Machines, "programs can run there"))
}

// statfs describes the file system of path, or of the nearest folder above that is there.
func (h *Host) statfs(path string) (there string, stat unix.Statfs_t, err error) {
	ask := h.Statfs
	if ask == nil {
		ask = unix.Statfs
	}
	for there = path; ; there = filepath.Dir(there) {
		err = ask(h.at(there), &stat)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) || there == "/" {
			return there, stat, err
		}
	}
}

// Floor is asked for when nobody can tell the size of the image; room is for what
// else a node puts into its tree: binaries, logs, the first container images.
const (
	Floor = 8 << 30
	room  = 1 << 30
)

// Space is what has to be stored.
type Space struct {
	Content uint64 // below paths.Content
	Tree    uint64 // below paths.Machines
	Exact   bool   // from the image itself; otherwise the floor for an image of unknown size
}

// ForImage is the space for an image whose layers have size bytes as stored; 0 when its tree
// is built already, -1 when the size is unknown. Layers unpack to about three times
// their size. What an earlier attempt left of it is not asked for again.
func (h *Host) ForImage(size int64) Space {
	if size < 0 {
		return Space{Tree: Floor}
	}
	need := Space{Content: uint64(size), Tree: 3*uint64(size) + room, Exact: true}
	if size > 0 {
		need.Content -= min(need.Content, h.used(paths.Content))
		need.Tree -= min(need.Tree-room, h.used(paths.Partial(h.Slot)))
	}
	return need
}

// used is how much the files below path take. What cannot be read counts nothing.
func (h *Host) used(path string) uint64 {
	var sum uint64
	_ = filepath.WalkDir(h.at(path), func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			if info, err := entry.Info(); err == nil {
				sum += uint64(info.Size())
			}
		}
		return nil
	})
	return sum
}

// DiskSpace tells whether there is room for need. Folders on one file system share its room.
func (h *Host) DiskSpace(need Space) check.Result {
	there, machines, err := h.statfs(paths.Machines)
	if err != nil {
		return check.Fail(check.May, paths.Machines, "%s cannot be looked at: %v", there, err)
	}
	_, content, err := h.statfs(paths.Content)
	if err != nil {
		return check.Fail(check.May, paths.Content, "%s cannot be looked at: %v", paths.Content, err)
	}
	wants := []struct {
		path string
		need uint64
		stat unix.Statfs_t
	}{{paths.Machines, need.Tree, machines}, {paths.Content, need.Content, content}}
	if machines.Fsid == content.Fsid {
		wants[0].need += need.Content
		wants = wants[:1]
	}
	why := "for this image"
	if !need.Exact {
		why = "for an image of unknown size"
	}
	for _, want := range wants {
		if free := free(want.stat); free < want.need {
			return check.Fail(check.May, want.path, "the file system of %s (mounted at %s) has %s free, %s are needed %s",
				want.path, h.mountName(want.path), size(free), size(want.need), why).Fix("make room or mount a larger file system there")
		}
	}
	return check.Pass(paths.Machines, "%s free, %s needed %s", size(free(machines)), size(wants[0].need), why)
}

func free(stat unix.Statfs_t) uint64 {
	return stat.Bavail * uint64(stat.Bsize)
}

// provisioning looks at the places of the machine. A tree that is there is the rootfs stage's to
// judge; here it is only what no stage could work with.
func (h *Host) provisioning(context.Context) []check.Result {
	var results []check.Result
	for _, want := range []struct {
		path string
		dir  bool
	}{
		{paths.Machines, true}, {paths.Tree(h.Slot), true}, {paths.DropIn(h.Slot), true}, {paths.Nspawn(h.Slot), false},
	} {
		info, err := os.Lstat(h.at(want.path))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			results = append(results, check.Fail(check.May, want.path, "%v", err))
		case want.dir && !info.IsDir() && (want.path != paths.Machines || info.Mode()&fs.ModeSymlink == 0):
			results = append(results, check.Fail(check.May, want.path, "%s is %s, not a folder", want.path, kind(info)).Fix("move it away"))
		case !want.dir && !info.Mode().IsRegular():
			results = append(results, check.Fail(check.May, want.path, "%s is %s, not a file", want.path, kind(info)).Fix("move it away"))
		}
	}
	if tree := paths.Tree(h.Slot); h.mountPoint(tree) {
		results = append(results, check.Fail(check.May, tree, "%s is a mount point, so no tree can be put there", tree).Fix("unmount it"))
	}
	if result, bad := h.readOnly(paths.Machines); bad {
		results = append(results, result)
	}
	if len(results) > 0 {
		return results
	}
	return one(check.Pass(paths.Tree(h.Slot), "can be made"))
}

func kind(info fs.FileInfo) string {
	switch {
	case info.IsDir():
		return "a folder"
	case info.Mode()&fs.ModeSymlink != 0:
		return "a symbolic link"
	case info.Mode().IsRegular():
		return "a file"
	}
	return "a special file"
}

func (h *Host) mountPoint(path string) bool {
	mount, ok := h.mountOf(path)
	return ok && mount == path
}

// mountName is the mount that holds path, for messages.
func (h *Host) mountName(path string) string {
	if mount, ok := h.mountOf(path); ok {
		return mount
	}
	return "an unknown place"
}

// mountOf finds the mount that holds path: the deepest one above it, the last of those
// that hide each other.
func (h *Host) mountOf(path string) (string, bool) {
	if resolved, err := filepath.EvalSymlinks(h.at(path)); err == nil && h.at("/") == "/" {
		path = resolved
	}
	data, err := os.ReadFile(h.at("/proc/self/mountinfo"))
	if err != nil {
		return "", false
	}
	best, found := "", false
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		mount := proc.Unescape(fields[4])
		holds := mount == "/" || path == mount || strings.HasPrefix(path, mount+"/")
		if holds && len(mount) >= len(best) {
			best, found = mount, true
		}
	}
	return best, found
}
