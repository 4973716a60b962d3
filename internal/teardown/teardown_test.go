package teardown

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"unbounded/internal/journal"
	"unbounded/internal/mounts/mountstest"
	"unbounded/internal/removal"
	"unbounded/internal/systemd"
)

// victimRoot is the variable that makes the test binary the remover that is to be killed.
const victimRoot = "UNBOUNDED_TEST_VICTIM"

func TestMain(m *testing.M) {
	if root := os.Getenv(victimRoot); root != "" {
		h := &host{root: root}
		if err := h.remover(idle{}).Remove(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(mountstest.Main(m))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type idle struct {
	runs, registered bool
	runsErr, regErr  error
}

func (i idle) SlotRuns(context.Context, string) (bool, error)   { return i.runs, i.runsErr }
func (i idle) Registered(context.Context, string) (bool, error) { return i.registered, i.regErr }

type host struct {
	t    *testing.T
	root string
	log  strings.Builder
}

func newHost(t *testing.T) *host {
	t.Helper()
	mountstest.Need(t)
	root, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	mountstest.Tmpfs(t, root) // and whatever is mounted on it goes with it
	return &host{t: t, root: root}
}

func (h *host) path(name string) string { return filepath.Join(h.root, name) }

func (h *host) remover(slots Slots) *Trees {
	return &Trees{Root: h.root, Slots: slots, Log: journal.To(&h.log), Proc: "/proc"}
}

func (h *host) remove(t *testing.T, slots Slots) error {
	t.Helper()
	h.log.Reset()
	return h.remover(slots).Remove(t.Context())
}

func (h *host) write(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		must(t, os.MkdirAll(filepath.Dir(h.path(name)), 0o755))
		must(t, os.WriteFile(h.path(name), []byte(name), 0o644))
	}
}

func (h *host) link(t *testing.T, target, name string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(h.path(name)), 0o755))
	must(t, os.Symlink(target, h.path(name)))
}

func (h *host) inode(t *testing.T, name string) string {
	t.Helper()
	var stat syscall.Stat_t
	must(t, syscall.Stat(h.path(name), &stat))
	return fmt.Sprintf("run/systemd/nspawn/locks/inode-%d:%d", stat.Dev, stat.Ino)
}

// all lists everything below the root with its mtime; mounted file systems too.
func (h *host) all(t *testing.T) []string {
	t.Helper()
	var names []string
	must(t, filepath.WalkDir(h.root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		names = append(names, fmt.Sprint(strings.TrimPrefix(path, h.root), info.Mode(), info.ModTime().UnixNano()))
		return nil
	}))
	return names
}

// files lists everything below the root that is no folder.
func (h *host) files(t *testing.T) []string {
	t.Helper()
	var names []string
	must(t, filepath.WalkDir(h.root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			names = append(names, strings.TrimPrefix(path, h.root+"/"))
		}
		return err
	}))
	return names
}

// fill makes what reset removes, and beside it what is not ours, which it returns.
func (h *host) fill(t *testing.T) (foreign []string) {
	t.Helper()
	h.write(t,
		"var/lib/machines/kube1/etc/os-release", "var/lib/machines/kube1/var/lib/kubelet/x", "var/lib/machines/kube2/file",
		"var/lib/machines/.kube1.partial/etc/motd", "var/lib/machines/.kube2.removing/usr/bin/x",
		"var/lib/machines/.#kube1.lck", "var/lib/machines/.#kube2.lck", "run/systemd/nspawn/locks/name-kube2",
		"var/lib/unbounded/oci/blobs/sha256/abc", "var/lib/unbounded/container-images/k/image-1.tar", "var/lib/unbounded/offline-artifacts/k/.ready",
	)
	h.write(t, h.inode(t, "var/lib/machines/kube1"), h.inode(t, "var/lib/machines/.kube2.removing"))
	h.link(t, "/var/lib/machines/kube1/var/log/journal/aa", "var/log/journal/aa")
	h.link(t, "/var/lib/machines/kube2/../kube2/var/log/journal/bb", "var/log/journal/bb")
	h.link(t, "/", "var/lib/machines/kube1/root")
	h.link(t, "k", "var/lib/unbounded/container-images/current")

	foreign = []string{
		"data/canary", "srv/secret", "run/systemd/nspawn/locks/inode-1:1", "run/systemd/nspawn/locks/name-other", "var/lib/machines/kube1.raw", "var/lib/machines/.#other.lck",
		"var/lib/machines/kube10/file", "var/lib/machines/.other.partial/file", "var/lib/unbounded/agent/install-state.json", "var/log/journal/host/system.journal",
	}
	h.write(t, foreign...)
	h.link(t, "/var/lib/machines/other/var/log/journal/cc", "var/log/journal/cc")
	h.link(t, "/var/lib/machines/kube1/../other/x", "var/log/journal/dd")
	foreign = append(foreign, "var/log/journal/cc", "var/log/journal/dd")
	slices.Sort(foreign)
	return foreign
}

// volumes mounts below the trees what must survive.
func (h *host) volumes(t *testing.T) {
	t.Helper()
	mountstest.Bind(t, h.path("data"), h.path("var/lib/machines/kube1/data"))
	mountstest.Bind(t, h.path("srv"), h.path("var/lib/machines/.kube2.removing/usr/a b\nc"))
	mountstest.Tmpfs(t, h.path("var/lib/machines/kube1/var/lib/kubelet/pods/1/volumes/t"))
	mountstest.Bind(t, h.path("data"), h.path("var/lib/machines/kube1/var/lib/kubelet/pods/1/volumes/t/sub"))
	mountstest.Tmpfs(t, h.path("var/lib/machines/.kube1.partial/t"))
}

func TestRemove(t *testing.T) {
	h := newHost(t)
	foreign := h.fill(t)
	h.volumes(t)
	must(t, h.remove(t, idle{}))
	if diff := cmp.Diff(foreign, h.files(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	for _, name := range []string{
		"/var/lib/machines/kube1: removed", "/var/lib/machines/kube2: removed", "/var/lib/machines/.kube1.partial: removed", "/var/lib/machines/.kube2.removing: removed",
		"/var/lib/machines/.#kube1.lck: removed", "/var/lib/unbounded/oci: removed", "/var/lib/unbounded/offline-artifacts: removed", "/var/log/journal/aa: removed",
	} {
		if !strings.Contains(h.log.String(), name+"\n") && !strings.Contains(h.log.String(), name+" ") {
			t.Errorf("the log says nothing of %q:\n%s", name, h.log.String())
		}
	}
	for _, gone := range []string{"var/lib/machines/kube1", "var/lib/machines/kube2", "var/lib/machines/.kube1.partial", "var/lib/unbounded/oci"} {
		if _, err := os.Lstat(h.path(gone)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", gone, err)
		}
	}
	if _, err := os.Lstat(h.path("var/lib/machines")); err != nil {
		t.Error(err)
	}
	before := h.all(t)
	must(t, h.remove(t, idle{}))
	if diff := cmp.Diff(before, h.all(t)); diff != "" || h.log.String() != "" {
		t.Errorf("the second run changed (-before +after):\n%s%s", diff, h.log.String())
	}
}

// On a host that has nothing of it there is nothing to do.
func TestRemoveNothing(t *testing.T) {
	h := newHost(t)
	must(t, h.remove(t, idle{}))
	if left := h.all(t); len(left) != 1 || h.log.Len() > 0 {
		t.Errorf("made: %v\n%s", left, h.log.String())
	}
}

// What is in the way stops it before anything is changed; with that out of the way it goes on.
func TestRemoveRefused(t *testing.T) {
	broken := errors.New("cannot be asked")
	for _, test := range []struct {
		name, text string
		slots      idle
		make       func(h *host) (free func())
	}{
		{"runs", "machine kube1 runs: stop it", idle{runs: true}, nil},
		{"PID 1 does not answer", "cannot be asked", idle{runsErr: broken}, nil},
		{"registered", "machinectl terminate kube1", idle{registered: true}, nil},
		{"machined says something else", "cannot be asked", idle{regErr: broken}, nil},
		{"tree on a mount", "is a mount point, and what is on it is not removed: run `umount -R", idle{}, func(h *host) func() {
			mountstest.Tmpfs(h.t, h.path("var/lib/machines/kube2"))
			h.write(h.t, "var/lib/machines/kube2/canary")
			return func() { must(h.t, unix.Unmount(h.path("var/lib/machines/kube2"), 0)) }
		}},
		{"partial tree on a mount", ".kube1.partial\" (tmpfs, tmpfs) is a mount point", idle{}, func(h *host) func() {
			mountstest.Tmpfs(h.t, h.path("var/lib/machines/.kube1.partial"))
			return func() { must(h.t, unix.Unmount(h.path("var/lib/machines/.kube1.partial"), 0)) }
		}},
		{"lock of nspawn", "/var/lib/machines/.#kube2.lck locks is in use by pid ", idle{}, func(h *host) func() {
			return h.hold(h.t, "var/lib/machines/.#kube2.lck")
		}},
		{"lock of nspawn by inode", "locks is in use by pid ", idle{}, func(h *host) func() {
			return h.hold(h.t, h.inode(h.t, "var/lib/machines/kube1"))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newHost(t)
			foreign := h.fill(t)
			h.volumes(t)
			free := func() {}
			if test.make != nil {
				free = test.make(h)
			}
			before := h.all(t)
			err := h.remove(t, test.slots)
			if err == nil || !strings.Contains(err.Error(), test.text) || strings.Contains(err.Error(), "\n") {
				t.Errorf("remove: %v, want %q", err, test.text)
			}
			if diff := cmp.Diff(before, h.all(t)); diff != "" || h.log.String() != "" {
				t.Errorf("changed (-before +after):\n%s%s", diff, h.log.String())
			}
			free()
			must(t, h.remove(t, idle{}))
			if diff := cmp.Diff(foreign, h.files(t)); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
		})
	}
}

// holder is a program that holds the lock on its standard input as nspawn does (F_OFD_SETLK), until it is killed.
const holder = `import fcntl, struct, sys
fcntl.fcntl(0, 37, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
print(flush=True)
import signal
signal.pause()`

func (h *host) hold(t *testing.T, name string) (release func()) {
	t.Helper()
	file, err := os.OpenFile(h.path(name), os.O_RDWR, 0)
	must(t, err)
	defer file.Close()
	command := exec.Command("python3", "-c", holder)
	command.Stdin, command.Stderr = file, os.Stderr
	out, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	_, err = out.Read(make([]byte, 1))
	must(t, err)
	release = func() { _ = command.Process.Kill(); _ = command.Wait() }
	t.Cleanup(release)
	return release
}

// A machined that is masked, dead or hangs is worked around: PID 1 has said that nothing runs.
func TestRemoveWithoutMachined(t *testing.T) {
	h := newHost(t)
	foreign := h.fill(t)
	must(t, h.remove(t, idle{regErr: fmt.Errorf("machine kube1: %w: it is masked", systemd.ErrCannotTell)}))
	if diff := cmp.Diff(foreign, h.files(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if !strings.Contains(h.log.String(), "it is masked; PID 1 says") {
		t.Errorf("log:\n%s", h.log.String())
	}
}

// A mount that is in use stops reset while the tree is whole, with its path and who uses it.
func TestRemoveBusy(t *testing.T) {
	h := newHost(t)
	foreign := h.fill(t)
	h.volumes(t)
	volume := h.path("var/lib/machines/kube1/var/lib/kubelet/pods/1/volumes/t")
	file, err := os.Create(filepath.Join(volume, "open"))
	must(t, err)
	err = h.remove(t, idle{})
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), fmt.Sprintf("%q", volume)) || !strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) {
		t.Errorf("remove: %v", err)
	}
	for _, name := range []string{"var/lib/machines/kube1/etc/os-release", "var/lib/machines/kube2/file", "var/lib/unbounded/oci/blobs/sha256/abc"} {
		if _, err := os.Lstat(h.path(name)); err != nil {
			t.Error(err)
		}
	}
	must(t, file.Close())
	must(t, h.remove(t, idle{}))
	if diff := cmp.Diff(foreign, h.files(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// Things in the place of a tree or a folder.
func TestRemoveOthers(t *testing.T) {
	for _, test := range []struct {
		name, text string // of the error, empty for none
		make       func(h *host)
		want       []string
	}{
		{"a link for a tree", "", func(h *host) { h.link(h.t, h.path("data"), "var/lib/machines/kube1") }, nil},
		{"a link for a partial tree", "", func(h *host) { h.link(h.t, "../../../data", "var/lib/machines/.kube1.partial") }, nil},
		{"a link for a hidden tree", "", func(h *host) {
			h.link(h.t, h.path("data"), "var/lib/machines/.kube1.removing")
			h.write(h.t, "var/lib/machines/kube1/file")
		}, nil},
		{"a link for the store", "", func(h *host) { h.link(h.t, h.path("data"), "var/lib/unbounded/oci") }, nil},
		{"a link for the folder of machines", "", func(h *host) {
			h.write(h.t, "disk/kube1/file", "disk/other/file")
			mountstest.Bind(h.t, h.path("data"), h.path("disk/kube1/data"))
			h.link(h.t, h.path("disk"), "var/lib/machines")
		}, []string{"disk/other/file", "var/lib/machines"}},
		{"a file for a tree", "kube2 is no folder", func(h *host) { h.write(h.t, "var/lib/machines/kube2") }, []string{"var/lib/machines/kube2"}},
		{"a file for a partial tree", "", func(h *host) { h.write(h.t, "var/lib/machines/.kube1.partial") }, nil},
		{"an empty tree", "", func(h *host) { must(h.t, os.MkdirAll(h.path("var/lib/machines/kube1"), 0o755)) }, nil},
		{"the store on a mount", "oci\" is a mount point", func(h *host) {
			mountstest.Tmpfs(h.t, h.path("var/lib/unbounded/oci"))
			h.write(h.t, "var/lib/unbounded/oci/canary")
		}, []string{"var/lib/unbounded/oci/canary"}},
		{"a folder for a lock", "", func(h *host) { h.write(h.t, "var/lib/machines/.#kube1.lck/x") }, []string{"var/lib/machines/.#kube1.lck/x"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newHost(t)
			h.write(t, "data/canary")
			test.make(h)
			for range 2 { // the second run is right, too
				err := h.remove(t, idle{})
				if (err == nil) != (test.text == "") || (err != nil && !strings.Contains(err.Error(), test.text)) {
					t.Errorf("remove: %v, want %q", err, test.text)
				}
			}
			if diff := cmp.Diff(append([]string{"data/canary"}, test.want...), h.files(t)); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
		})
	}
}

// A folder of a lower layer cannot be renamed: it is removed where it is.
func TestRemoveOverlay(t *testing.T) {
	h := newHost(t)
	h.write(t, "lower/machines/kube1/file")
	for _, dir := range []string{"upper", "work", "var/lib"} {
		must(t, os.MkdirAll(h.path(dir), 0o755))
	}
	must(t, unix.Mount("overlay", h.path("var/lib"), "overlay", 0,
		fmt.Sprintf("redirect_dir=off,lowerdir=%s,upperdir=%s,workdir=%s", h.path("lower"), h.path("upper"), h.path("work"))))
	must(t, h.remove(t, idle{}))
	if names, err := os.ReadDir(h.path("var/lib/machines")); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// A read-only file system fails with the path; when nothing is on it, it does not matter.
func TestRemoveReadOnly(t *testing.T) {
	h := newHost(t)
	h.fill(t)
	must(t, unix.Mount("", h.root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if err := h.remove(t, idle{}); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "/var/lib/machines/") {
		t.Errorf("remove: %v", err)
	}
	must(t, unix.Mount("", h.root, "", unix.MS_REMOUNT, ""))
	must(t, h.remove(t, idle{}))
	must(t, unix.Mount("", h.root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	must(t, h.remove(t, idle{}))
}

// A volume that comes when the tree has its other name already is found by the next run.
func TestRemoveMountMeanwhile(t *testing.T) {
	h := newHost(t)
	h.write(t, "data/canary", "var/lib/machines/.kube1.removing/a/b")
	mountstest.Bind(t, h.path("data"), h.path("var/lib/machines/.kube1.removing/a/c"))
	_, err := removal.Tree(t.Context(), h.path("var/lib/machines/.kube1.removing"))
	if !errors.Is(err, removal.ErrMount) {
		t.Fatal(err)
	}
	must(t, h.remove(t, idle{}))
	if diff := cmp.Diff([]string{"data/canary"}, h.files(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// awaitRename returns when kube1 has no tree with its own name any more.
func (h *host) awaitRename() {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if _, err := os.Lstat(h.path("var/lib/machines/kube1")); err != nil {
			return
		}
	}
}

// Killed at any moment: a tree with its own name is whole, nothing foreign is touched, and the next run finishes.
func TestRemoveKilled(t *testing.T) {
	h := newHost(t)
	const files, rounds = 1500, 20
	victim := func() *exec.Cmd {
		command := exec.CommandContext(t.Context(), "/proc/self/exe")
		command.Env = append(os.Environ(), victimRoot+"="+h.root)
		return command
	}
	fill := func() []string {
		for n := range files {
			h.write(t, fmt.Sprintf("var/lib/machines/kube1/usr/%d/%d", n%100, n))
		}
		foreign := h.fill(t)
		h.volumes(t)
		return foreign
	}
	clean := func() { must(t, os.RemoveAll(h.path("var"))); must(t, os.RemoveAll(h.path("run"))) }
	fill()
	began := time.Now()
	out, err := victim().CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	whole, before, during := time.Since(began), 0, 0
	clean()
	for round := range rounds {
		foreign := fill()
		want := len(h.files(t))
		command := victim()
		must(t, command.Start())
		if round%2 == 0 {
			time.Sleep(whole * time.Duration(round+1) / (rounds + 2))
		} else {
			h.awaitRename()
		}
		_ = command.Process.Kill()
		_ = command.Wait()
		if _, err := os.Lstat(h.path("var/lib/machines/.kube1.removing")); err == nil {
			during++
		}
		have := 0
		_ = filepath.WalkDir(h.path("var/lib/machines/kube1/usr"), func(_ string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				have++
			}
			return nil
		})
		if have == files {
			before++
		} else if _, err := os.Lstat(h.path("var/lib/machines/kube1")); err == nil {
			t.Errorf("a tree with its own name has %d of %d files", have, files)
		}
		must(t, h.remove(t, idle{}))
		if diff := cmp.Diff(foreign, h.files(t)); diff != "" {
			t.Fatalf("of %d left (-want +got):\n%s", want, diff)
		}
		clean()
	}
	t.Logf("undisturbed %s; killed %d times before the rename, %d times after", whole, before, during)
	if before == 0 || during == 0 {
		t.Error("the kills were not spread: the test proves little")
	}
}
