package mounts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"unbounded/internal/journal"
	"unbounded/internal/mounts/mountstest"
)

func TestMain(m *testing.M) { os.Exit(mountstest.Main(m)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name, line string
		want       Mount
		fails      bool
	}{
		{"plain", "29 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw", Mount{29, 1, "/", "ext4", "/dev/sda1", 0}, false},
		{"shared", "31 29 0:26 / /run rw shared:12 - tmpfs tmpfs rw", Mount{31, 29, "/run", "tmpfs", "tmpfs", 12}, false},
		{"more tags", "31 29 0:26 /a /b rw master:3 propagate_from:2 shared:7 - tmpfs none rw", Mount{31, 29, "/b", "tmpfs", "none", 7}, false},
		{"escapes", `31 29 0:26 / /a\040b\011c\012d\134e\043 rw - fuse.x s\040t rw`, Mount{31, 29, "/a b\tc\nd\\e#", "fuse.x", "s t", 0}, false},
		{"empty source", "31 29 0:26 / /x rw - tmpfs  rw", Mount{31, 29, "/x", "tmpfs", "", 0}, false},
		{"a dash for a name", `31 29 0:26 / /a/- rw - tmpfs - rw`, Mount{31, 29, "/a/-", "tmpfs", "-", 0}, false},
		{"no tail", "31 29 0:26 / /x rw", Mount{}, true},
		{"no number", "x 29 0:26 / /x rw - tmpfs t rw", Mount{}, true},
		{"relative", "31 29 0:26 / x rw - tmpfs t rw", Mount{}, true},
		{"empty", "", Mount{}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parse(test.line)
			if (err != nil) != test.fails {
				t.Fatalf("parse: %v, fails %v", err, test.fails)
			}
			if !test.fails && got != test.want {
				t.Errorf("parse = %+v, want %+v", got, test.want)
			}
		})
	}
}

// Whatever the kernel may print one day: no panic, and a mount is absolute.
func FuzzParse(f *testing.F) {
	f.Add("29 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw")
	f.Add(`31 29 0:26 / /a\040\134 rw - tmpfs  rw`)
	f.Fuzz(func(t *testing.T, line string) {
		m, err := parse(line)
		if err == nil && !filepath.IsAbs(m.Point) {
			t.Errorf("parse(%q) = %+v", line, m)
		}
		plan([]Mount{m, m, {ID: m.Parent, Parent: m.ID, Point: "/a/b"}}, []string{"/", "/a"}) // ends
	})
}

func TestPlan(t *testing.T) {
	const root, other = 1, 2
	all := func(mounts ...Mount) []Mount {
		return append([]Mount{{ID: root, Point: "/"}, {ID: other, Parent: root, Point: "/data", Peers: 5}}, mounts...)
	}
	for _, test := range []struct {
		name string
		all  []Mount
		want string
	}{
		{"nothing", all(), ""},
		{"not at the folder, nor beside it", all(Mount{ID: 3, Parent: 1, Point: "/m/kube1"}, Mount{ID: 4, Parent: 1, Point: "/m/kube10/x"}), ""},
		{"the deepest first", all(Mount{ID: 3, Parent: 1, Point: "/m/kube1/a"}, Mount{ID: 4, Parent: 3, Point: "/m/kube1/a/b"}), "4 3"},
		{"on each other", all(Mount{ID: 3, Parent: 1, Point: "/m/kube1/a"}, Mount{ID: 4, Parent: 3, Point: "/m/kube1/a"}), "4 3"},
		{
			"hidden by a sister", all(Mount{ID: 3, Parent: 1, Point: "/m/kube1/a/b"}, Mount{ID: 4, Parent: 3, Point: "/m/kube1/a/b/c"},
				Mount{ID: 5, Parent: 1, Point: "/m/kube1/a"}, Mount{ID: 6, Parent: 5, Point: "/m/kube1/a/z"}), "6 5 4 3",
		},
		{"leaves its peers", all(Mount{ID: 3, Parent: 1, Point: "/m/kube1/a", Peers: 5}, Mount{ID: 4, Parent: 3, Point: "/m/kube1/a/b", Peers: 6}), "leave3 4 3"},
		{
			"hides a mount with peers", all(Mount{ID: 3, Parent: 1, Point: "/m/kube1/a", Peers: 5}, Mount{ID: 4, Parent: 3, Point: "/m/kube1/a", Peers: 6}),
			"refuse4 4 3",
		},
		{
			"hides a mount with peers that go too", all(Mount{ID: 3, Parent: 1, Point: "/m/kube1/a", Peers: 7}, Mount{ID: 4, Parent: 3, Point: "/m/kube1/a"},
				Mount{ID: 5, Parent: 3, Point: "/m/kube1/a/b"}), "4 leave3 5 3",
		},
		{"its own parent", all(Mount{ID: 3, Parent: 3, Point: "/m/kube1/a"}), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, s := range plan(test.all, []string{"/m/kube1", "/m/.kube1.partial"}) {
				got = append(got, fmt.Sprint([]string{"", "leave", "refuse"}[s.act], s.ID))
			}
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func table() Table { return Table{Proc: "/proc", Log: journal.To(&strings.Builder{})} }

func below(t *testing.T, dir string) []string {
	t.Helper()
	all, err := Read("/proc")
	must(t, err)
	var points []string
	for _, m := range all {
		if within(m.Point, dir) {
			points = append(points, m.Point)
		}
	}
	return points
}

// folder is a test's own folder, without links in its path.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return dir
}

// box is where a test mounts something.
type box struct {
	t   *testing.T
	dir string
}

func TestUnmountBelow(t *testing.T) {
	mountstest.Need(t)
	for _, test := range []struct {
		name string
		make func(b box)
	}{
		{"nothing", func(box) {}},
		{"strange names", func(b box) {
			for _, name := range []string{"a b", "tab\tx", "line\nx", `back\slash`, `\040`, `\`, "#", "-", " - ", "ö\xff\x01", "a (deleted)", strings.Repeat("x", 255)} {
				mountstest.Tmpfs(b.t, filepath.Join(b.dir, name))
				mountstest.Tmpfs(b.t, filepath.Join(b.dir, name, "in "+name[:min(len(name), 200)]))
			}
		}},
		{"100 in each other", func(b box) {
			for range 100 {
				b.dir = filepath.Join(b.dir, "d")
				mountstest.Tmpfs(b.t, b.dir)
			}
		}},
		{"20 on each other, shared", func(b box) {
			for range 20 {
				mountstest.Tmpfs(b.t, filepath.Join(b.dir, "d"))
				mountstest.Shared(b.t, filepath.Join(b.dir, "d"))
			}
			mountstest.Tmpfs(b.t, filepath.Join(b.dir, "d/e"))
		}},
		{"hidden", func(b box) {
			mountstest.Tmpfs(b.t, filepath.Join(b.dir, "a/b"))
			mountstest.Tmpfs(b.t, filepath.Join(b.dir, "a/b/c"))
			mountstest.Tmpfs(b.t, filepath.Join(b.dir, "a"))
			mountstest.Tmpfs(b.t, filepath.Join(b.dir, "a/x/y"))
			mountstest.Tmpfs(b.t, filepath.Join(b.dir, "a/x"))
		}},
		{"a file", func(b box) {
			must(b.t, os.WriteFile(filepath.Join(b.dir, "file"), nil, 0o600))
			must(b.t, unix.Mount("/etc/hostname", filepath.Join(b.dir, "file"), "", unix.MS_BIND, ""))
		}},
		{"longer than a path may be", func(b box) {
			fd, err := unix.Open(b.dir, unix.O_PATH, 0)
			must(b.t, err)
			for n := range 40 {
				name := strings.Repeat("x", 200)
				must(b.t, unix.Mkdirat(fd, name, 0o755))
				if n > 30 {
					must(b.t, unix.Mount("tmpfs", fmt.Sprintf("/proc/self/fd/%d/%s", fd, name), "tmpfs", 0, ""))
				}
				next, err := unix.Openat(fd, name, unix.O_PATH, 0)
				must(b.t, errors.Join(err, unix.Close(fd)))
				fd = next
			}
			must(b.t, unix.Close(fd))
		}},
		{"read only", func(b box) {
			mountstest.Tmpfs(b.t, filepath.Join(b.dir, "a"))
			mountstest.Tmpfs(b.t, filepath.Join(b.dir, "a/b"))
			must(b.t, unix.Mount("", filepath.Join(b.dir, "a"), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := folder(t)
			mountstest.Tmpfs(t, filepath.Join(dir, "beside"))
			test.make(box{t, dir})
			must(t, table().UnmountBelow(t.Context(), dir))
			if left := below(t, dir); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// What is mounted at the folder, or beside it under a name that begins alike, stays.
func TestStays(t *testing.T) {
	mountstest.Need(t)
	dir := folder(t)
	for _, name := range []string{"kube1", "kube10", "kube1 "} {
		mountstest.Tmpfs(t, filepath.Join(dir, name))
	}
	mountstest.Tmpfs(t, filepath.Join(dir, "kube1/x"))
	must(t, table().UnmountBelow(t.Context(), filepath.Join(dir, "kube1"), filepath.Join(dir, "absent")))
	want := []string{filepath.Join(dir, "kube1"), filepath.Join(dir, "kube10"), filepath.Join(dir, "kube1 ")}
	if diff := cmp.Diff(want, below(t, dir)); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

// Unmounting a recursive bind of shared mounts must not take the originals away, nor what is on them.
func TestOriginalsStay(t *testing.T) {
	mountstest.Need(t)
	dir := folder(t)
	data, bound := filepath.Join(dir, "data"), filepath.Join(dir, "tree/data")
	mountstest.Tmpfs(t, data)
	mountstest.Shared(t, data)
	mountstest.Tmpfs(t, filepath.Join(data, "sub"))
	mountstest.Shared(t, filepath.Join(data, "sub"))
	mountstest.Tmpfs(t, filepath.Join(data, "sub/sub"))
	canary := filepath.Join(data, "sub/sub/canary")
	must(t, os.WriteFile(canary, nil, 0o600))
	mountstest.Mount(t, data, bound, "", unix.MS_BIND|unix.MS_REC)
	mountstest.Tmpfs(t, filepath.Join(data, "later")) // gets into the tree by itself
	if got := len(below(t, filepath.Join(dir, "tree"))); got != 4 {
		t.Fatalf("%d mounts below the tree, want 4", got)
	}
	must(t, table().UnmountBelow(t.Context(), filepath.Join(dir, "tree")))
	if left := below(t, filepath.Join(dir, "tree")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if got := len(below(t, data)); got != 3 {
		t.Errorf("%d mounts are left on the original, want 3", got)
	}
	if _, err := os.Lstat(canary); err != nil {
		t.Errorf("canary: %v", err)
	}
}

// One that hides a shared mount cannot be unmounted without its like elsewhere: it is refused.
func TestHidesShared(t *testing.T) {
	mountstest.Need(t)
	dir := folder(t)
	data, bound := filepath.Join(dir, "data"), filepath.Join(dir, "tree/data")
	mountstest.Tmpfs(t, data)
	mountstest.Shared(t, data)
	mountstest.Bind(t, data, bound)
	mountstest.Tmpfs(t, data) // and over the bind, too
	must(t, os.WriteFile(filepath.Join(data, "canary"), nil, 0o600))
	err := table().UnmountBelow(t.Context(), filepath.Join(dir, "tree"))
	if err == nil || !strings.Contains(err.Error(), data) || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("UnmountBelow: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(data, "canary")); err != nil {
		t.Errorf("canary: %v", err)
	}
}

// What is in use stays, with all that is above it, and the message says by whom.
func TestBusy(t *testing.T) {
	mountstest.Need(t)
	for _, test := range []struct {
		name, script, text string
		unshare            string // propagation of a mount namespace of its own
	}{
		{"open file", `exec 3>"$0/file"; echo; read x || true`, `/file" open`, ""},
		{"working folder", `cd "$0"; echo; read x || true`, "cwd", ""},
		{"in another namespace", `cd "$0"; echo; read x || true`, "cwd", "private"},
		{"in another namespace that follows", `cd "$0"; echo; read x || true`, "cwd", "unchanged"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := folder(t)
			mountstest.Tmpfs(t, dir)
			if test.unshare == "unchanged" {
				mountstest.Shared(t, dir)
			}
			point := filepath.Join(dir, "a b/c")
			mountstest.Tmpfs(t, point)
			user := exec.Command("sh", "-c", test.script, point)
			if test.unshare != "" {
				user = exec.Command("unshare", append([]string{"--mount", "--propagation", test.unshare}, user.Args...)...)
			}
			in, err := user.StdinPipe()
			must(t, err)
			out, err := user.StdoutPipe()
			must(t, err)
			must(t, user.Start())
			_, err = out.Read(make([]byte, 1))
			must(t, err)
			err = table().UnmountBelow(t.Context(), dir)
			if test.unshare == "private" { // private: not the same mount, so it is none of ours
				must(t, err)
			} else {
				if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d sh", user.Process.Pid)) ||
					!strings.Contains(err.Error(), test.text) || !strings.Contains(err.Error(), fmt.Sprintf("%q", point)) || strings.Contains(err.Error(), "\n") {
					t.Errorf("UnmountBelow: %v", err)
				}
				if left := below(t, dir); len(left) != 1 {
					t.Errorf("left: %q", left)
				}
			}
			must(t, in.Close())
			must(t, user.Wait())
			must(t, table().UnmountBelow(t.Context(), dir))
		})
	}
}

// What falls free soon is waited for, and a cancel ends the wait.
func TestWait(t *testing.T) {
	mountstest.Need(t)
	dir := folder(t)
	mountstest.Tmpfs(t, filepath.Join(dir, "a"))
	file, err := os.Create(filepath.Join(dir, "a/file"))
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(500*time.Millisecond, cancel)
	began := time.Now()
	if err := table().UnmountBelow(ctx, dir); !errors.Is(err, unix.EBUSY) || time.Since(began) >= patience {
		t.Errorf("UnmountBelow = %v after %s", err, time.Since(began))
	}
	time.AfterFunc(300*time.Millisecond, func() { _ = file.Close() })
	must(t, table().UnmountBelow(t.Context(), dir))
}

// Links and mounts put in the way while it works: never is anything else unmounted than what is below.
func TestRace(t *testing.T) {
	mountstest.Need(t)
	dir := folder(t)
	foreign, tree := filepath.Join(dir, "foreign"), filepath.Join(dir, "tree")
	mountstest.Tmpfs(t, filepath.Join(foreign, "x"))
	all, err := Read("/proc")
	must(t, err)
	id := On(all, filepath.Join(foreign, "x"))[0].ID
	must(t, os.Mkdir(tree, 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			a, b := filepath.Join(tree, "a"), filepath.Join(tree, "b")
			switch rand.IntN(4) {
			case 0:
				_ = os.MkdirAll(filepath.Join(a, "x"), 0o755)
				_ = unix.Mount("tmpfs", filepath.Join(a, "x"), "tmpfs", 0, "")
			case 1:
				_ = os.Rename(a, b)
			case 2:
				_ = os.Symlink(foreign, a)
			case 3:
				_ = os.Remove(a)
			}
		}
	}()
	for ctx.Err() == nil {
		_ = table().UnmountBelow(ctx, tree)
		all, err := Read("/proc")
		must(t, err)
		if !slices.ContainsFunc(all, func(m Mount) bool { return m.ID == id }) { // others may be mounted over it
			t.Fatal("a foreign mount was unmounted")
		}
	}
	<-done
	must(t, table().UnmountBelow(t.Context(), dir))
}

// Names at random, nested at random, all at once.
func TestRandom(t *testing.T) {
	mountstest.Need(t)
	letters := []string{" ", "\n", `\`, "0", "4", "-", ".", "a", "\xff", "\t", "#", "ä"}
	for round := range 20 {
		dir := folder(t)
		points := []string{dir}
		for range 30 {
			name := "n"
			for range 1 + rand.IntN(12) {
				name += letters[rand.IntN(len(letters))]
			}
			point := filepath.Join(points[rand.IntN(len(points))], name)
			if rand.IntN(4) == 0 {
				point = points[rand.IntN(len(points))] // over another
			}
			if point == dir {
				continue
			}
			mountstest.Tmpfs(t, point)
			if rand.IntN(2) == 0 {
				mountstest.Shared(t, point)
			}
			points = append(points, point)
		}
		must(t, table().UnmountBelow(t.Context(), dir))
		if left := below(t, dir); len(left) > 0 {
			t.Fatalf("round %d: left %q", round, left)
		}
	}
}

// A process with mounts of its own must not believe that it unmounts the host's.
func TestShown(t *testing.T) {
	proc := t.TempDir()
	link := func(pid, target string) {
		must(t, os.MkdirAll(filepath.Join(proc, pid, "ns"), 0o755))
		must(t, os.Symlink(target, filepath.Join(proc, pid, "ns/mnt")))
	}
	link("1", "mnt:[1]")
	if err := Shown(proc); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Shown = %v", err)
	}
	link("self", "mnt:[1]")
	must(t, Shown(proc))
	must(t, os.Remove(filepath.Join(proc, "1/ns/mnt")))
	link("1", "mnt:[2]")
	if Shown(proc) == nil {
		t.Error("Shown = nil, want an error")
	}
}
