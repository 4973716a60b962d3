package removal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"unbounded/internal/mounts/mountstest"
)

func TestMain(m *testing.M) { os.Exit(mountstest.Main(m)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte("canary"), 0o600))
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// chattr sets the flags of a file, and clears them after the test.
func chattr(t *testing.T, path string, flags int) {
	t.Helper()
	file, err := os.Open(path)
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(setFlags(file, 0), file.Close())) })
	if err := setFlags(file, flags); errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("SKIPPED: a file system without these flags")
	} else if err != nil {
		t.Fatal(err)
	}
}

func attributes(t *testing.T, path string) uint64 {
	t.Helper()
	stat, err := statx(unix.AT_FDCWD, path)
	must(t, err)
	return stat.Attributes & locked
}

// box is what a test makes something in.
type box struct {
	t             *testing.T
	path, outside string
}

func TestTree(t *testing.T) {
	mountstest.Need(t)
	for _, test := range []struct {
		name string
		make func(b box)
	}{
		{"a file", func(b box) { write(b.t, b.path) }},
		{"an empty folder", func(b box) { must(b.t, os.Mkdir(b.path, 0)) }},
		{"a link to a folder", func(b box) { must(b.t, os.Symlink(b.outside, b.path)) }},
		{"a dangling link", func(b box) { must(b.t, os.Symlink("nowhere", b.path)) }},
		{"links and kinds of files", func(b box) {
			write(b.t, filepath.Join(b.path, "a/b/c"))
			must(b.t, os.Symlink(b.outside, filepath.Join(b.path, "a/link")))
			must(b.t, os.Symlink("../../..", filepath.Join(b.path, "a/up")))
			must(b.t, os.Link(filepath.Join(b.outside, "canary"), filepath.Join(b.path, "hard")))
			must(b.t, unix.Mkfifo(filepath.Join(b.path, "fifo"), 0))
			must(b.t, unix.Mknod(filepath.Join(b.path, "whiteout"), unix.S_IFCHR, 0))
			must(b.t, unix.Mknod(filepath.Join(b.path, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
			for _, name := range []string{"line\nx", `b\s`, "\xff", "-rf", "*", " ", ".unbounded-deep-1"} {
				write(b.t, filepath.Join(b.path, name, name))
			}
			must(b.t, os.Chmod(filepath.Join(b.path, "a"), 0))
		}},
		{"flags", func(b box) {
			write(b.t, filepath.Join(b.path, "a/immutable"))
			write(b.t, filepath.Join(b.path, "a/d/append"))
			chattr(b.t, filepath.Join(b.path, "a/immutable"), immutable)
			chattr(b.t, filepath.Join(b.path, "a/d/append"), appendOnly)
			chattr(b.t, filepath.Join(b.path, "a/d"), immutable)
			chattr(b.t, filepath.Join(b.path, "a"), appendOnly)
			chattr(b.t, b.path, immutable|appendOnly)
		}},
		{"an immutable file", func(b box) { write(b.t, b.path); chattr(b.t, b.path, immutable) }},
		{"an immutable empty folder", func(b box) { must(b.t, os.Mkdir(b.path, 0o755)); chattr(b.t, b.path, immutable) }},
		{"short and very deep", func(b box) { deep(b.t, b.path, "d", 2500) }},
		{"long and very deep", func(b box) { deep(b.t, b.path, strings.Repeat("d", 250), 500) }},
		{"many", func(b box) {
			for n := range 3000 {
				if n%15 == 0 {
					must(b.t, os.MkdirAll(filepath.Join(b.path, fmt.Sprint(n/15%40), fmt.Sprint(n/15)), 0o755))
				}
				write(b.t, filepath.Join(b.path, fmt.Sprint(n/15%40), fmt.Sprint(n/15), fmt.Sprint(n)))
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path, outside := filepath.Join(dir, "tree"), filepath.Join(dir, "outside")
			write(t, filepath.Join(outside, "canary"))
			test.make(box{t, path, outside})
			began := time.Now()
			if removed, err := Tree(t.Context(), path); !removed || err != nil {
				t.Fatalf("Tree = %v, %v", removed, err)
			}
			t.Logf("took %s", time.Since(began))
			if there(path) {
				t.Error("it is there still")
			}
			if data, err := os.ReadFile(filepath.Join(outside, "canary")); string(data) != "canary" {
				t.Errorf("canary: %q, %v", data, err)
			}
			if removed, err := Tree(t.Context(), path); removed || err != nil {
				t.Errorf("again: Tree = %v, %v", removed, err)
			}
		})
	}
}

// deep makes a folder with so many in each other that no path leads to the last.
func deep(t *testing.T, path, name string, levels int) {
	t.Helper()
	must(t, os.Mkdir(path, 0o755))
	fd, err := unix.Open(path, unix.O_PATH, 0)
	must(t, err)
	for range levels {
		must(t, unix.Mkdirat(fd, name, 0o755))
		must(t, unix.Mknodat(fd, "file", unix.S_IFREG, 0))
		next, err := unix.Openat(fd, name, unix.O_PATH, 0)
		must(t, errors.Join(err, unix.Close(fd)))
		fd = next
	}
	must(t, unix.Close(fd))
}

func TestAbsent(t *testing.T) {
	for _, path := range []string{"absent", "absent/too"} {
		if removed, err := Tree(t.Context(), filepath.Join(t.TempDir(), path)); removed || err != nil {
			t.Errorf("Tree(%s) = %v, %v", path, removed, err)
		}
	}
}

// On a mount nothing is touched, however deep it is.
func TestMount(t *testing.T) {
	mountstest.Need(t)
	deepest := strings.Repeat("d/", 3*deepest)
	for _, test := range []struct{ name, at string }{{"top", ""}, {"below", "a/b"}, {"very deep", deepest}} {
		for _, kind := range []string{"tmpfs", "bind", "file"} {
			t.Run(test.name+" "+kind, func(t *testing.T) {
				dir := t.TempDir()
				mountstest.Tmpfs(t, dir) // and whatever is on it goes with it
				path, outside := filepath.Join(dir, "tree"), filepath.Join(dir, "outside")
				write(t, filepath.Join(outside, "canary"))
				point := filepath.Join(path, test.at)
				canary := filepath.Join(point, "canary")
				switch kind {
				case "tmpfs":
					mountstest.Tmpfs(t, point)
					write(t, canary)
				case "bind":
					mountstest.Bind(t, outside, point)
				case "file":
					if test.at == "" {
						t.Skip("it would be no tree")
					}
					canary = filepath.Join(point, "mounted")
					write(t, canary)
					must(t, unix.Mount(filepath.Join(outside, "canary"), canary, "", unix.MS_BIND, ""))
				}
				root, err := os.Open(filepath.Dir(canary)) // what is very deep is moved
				must(t, err)
				defer root.Close()
				_, err = Tree(t.Context(), path)
				if !errors.Is(err, ErrMount) {
					t.Errorf("Tree = %v, want %v", err, ErrMount)
				}
				var stat unix.Stat_t
				must(t, unix.Fstatat(int(root.Fd()), filepath.Base(canary), &stat, 0))
				if stat.Size != int64(len("canary")) || !there(filepath.Join(outside, "canary")) {
					t.Error("the canary is gone")
				}
			})
		}
	}
}

// A file that is immutable elsewhere too stays so there.
func TestHardLinkKeepsItsFlags(t *testing.T) {
	mountstest.Need(t)
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	write(t, outside)
	for n := range 3 {
		path := filepath.Join(dir, "tree", fmt.Sprint(n), "link")
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.Link(outside, path))
	}
	chattr(t, outside, immutable)
	if _, err := Tree(t.Context(), filepath.Join(dir, "tree")); err != nil {
		t.Fatal(err)
	}
	if attributes(t, outside) != unix.STATX_ATTR_IMMUTABLE {
		t.Error("the file outside is not immutable any more")
	}
}

// The folder that all happens in is not ours: its flags stay, and the error says what to do.
func TestImmutableFolder(t *testing.T) {
	mountstest.Need(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "tree/file"))
	chattr(t, dir, immutable)
	_, err := Tree(t.Context(), filepath.Join(dir, "tree"))
	if err == nil || !strings.Contains(err.Error(), "chattr -ia "+dir) {
		t.Errorf("Tree = %v", err)
	}
	if attributes(t, dir) == 0 {
		t.Error("its flag is gone")
	}
}

func TestRename(t *testing.T) {
	mountstest.Need(t)
	dir := t.TempDir()
	from, to := filepath.Join(dir, "tree"), filepath.Join(dir, ".removing")
	write(t, filepath.Join(from, "file"))
	chattr(t, from, immutable)
	must(t, Rename(from, to))
	if there(from) || !there(to) {
		t.Error("it is where it was")
	}
	if err := Rename(from, to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Rename = %v", err)
	}
}

func TestReadOnly(t *testing.T) {
	mountstest.Need(t)
	dir := t.TempDir()
	mountstest.Tmpfs(t, dir)
	path := filepath.Join(dir, "tree")
	write(t, filepath.Join(path, "file"))
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if _, err := Tree(t.Context(), path); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), path) {
		t.Errorf("Tree = %v, want EROFS that names %s", err, path)
	}
	if removed, err := Tree(t.Context(), filepath.Join(dir, "absent")); removed || err != nil {
		t.Errorf("absent: Tree = %v, %v", removed, err)
	}
}

func TestCancelled(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "tree/a/file"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Tree(ctx, filepath.Join(dir, "tree")); !errors.Is(err, context.Canceled) {
		t.Errorf("Tree = %v", err)
	}
}

// Who writes while all is removed delays the end; who never stops is told of, and nothing hangs.
func TestWriterMeanwhile(t *testing.T) {
	for _, test := range []struct {
		name  string
		limit time.Duration
	}{{"for a while", 200 * time.Millisecond}, {"for ever", time.Hour}} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tree")
			write(t, filepath.Join(path, "a/b/file"))
			folder, err := os.Open(filepath.Join(path, "a/b"))
			must(t, err)
			defer folder.Close()
			ctx, stop := context.WithTimeout(t.Context(), test.limit)
			defer stop()
			done := make(chan struct{})
			go func() {
				defer close(done)
				for n := 0; ctx.Err() == nil; n++ {
					name := fmt.Sprint(n)
					if unix.Mkdirat(int(folder.Fd()), name, 0o755) == nil {
						_ = unix.Mknodat(int(folder.Fd()), name+"/x", unix.S_IFREG, 0)
					}
				}
			}()
			limit, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err = Tree(limit, path)
			stop()
			<-done
			if err != nil && !strings.Contains(err.Error(), "is filled again") && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Tree = %v", err)
			}
			t.Logf("Tree = %v", err)
			if _, err := Tree(t.Context(), path); err != nil || there(path) {
				t.Errorf("afterwards: %v, there: %v", err, there(path))
			}
		})
	}
}

// Folders that become links while they are looked at lead nowhere.
func TestLinksMeanwhile(t *testing.T) {
	dir := t.TempDir()
	path, outside := filepath.Join(dir, "tree"), filepath.Join(dir, "outside")
	for n := range 50 {
		write(t, filepath.Join(outside, "d", fmt.Sprint(n)))
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			name := filepath.Join(path, fmt.Sprint(rand.IntN(4)))
			_ = os.MkdirAll(filepath.Join(name, "d"), 0o755)
			_ = os.Rename(filepath.Join(name, "d"), name+"x")
			_ = os.Symlink(filepath.Join(outside, "d"), filepath.Join(name, "d"))
			_ = unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, name+"x", unix.RENAME_EXCHANGE)
		}
	}()
	for ctx.Err() == nil {
		_, _ = Tree(ctx, path)
	}
	<-done
	for n := range 50 {
		if !there(filepath.Join(outside, "d", fmt.Sprint(n))) {
			t.Fatal("a file outside is gone")
		}
	}
	if _, err := Tree(t.Context(), path); err != nil {
		t.Error(err)
	}
}

// Subvolumes of btrfs, one in another and read-only ones, go like folders.
func TestSubvolumes(t *testing.T) {
	mountstest.Need(t)
	for _, program := range []string{"mkfs.btrfs", "btrfs", "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
	}
	dir := t.TempDir()
	run := func(argv ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", argv, err, out)
		}
	}
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	must(t, errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 256<<20), os.Mkdir(at, 0o755)))
	run("mkfs.btrfs", "-q", image)
	run("mount", "-o", "loop", image, at)
	t.Cleanup(func() { must(t, unix.Unmount(at, 0)) }) // the loop device goes with it
	path := filepath.Join(at, "tree")
	run("btrfs", "subvolume", "create", path)
	write(t, filepath.Join(path, "a/file"))
	run("btrfs", "subvolume", "create", filepath.Join(path, "a/sub"))
	run("btrfs", "subvolume", "create", filepath.Join(path, "a/sub/sub"))
	write(t, filepath.Join(path, "a/sub/sub/file"))
	run("btrfs", "subvolume", "snapshot", "-r", filepath.Join(path, "a/sub/sub"), filepath.Join(path, "a/ro"))
	run("btrfs", "subvolume", "snapshot", "-r", path, filepath.Join(path, "a/ro-empty-sub"))
	must(t, os.MkdirAll(filepath.Join(path, "a/m"), 0o755))
	must(t, unix.Mount("tmpfs", filepath.Join(path, "a/m"), "tmpfs", 0, ""))
	if _, err := Tree(t.Context(), path); !errors.Is(err, ErrMount) {
		t.Errorf("Tree = %v, want %v", err, ErrMount)
	}
	must(t, unix.Unmount(filepath.Join(path, "a/m"), 0))
	must(t, Rename(path, path+"2"))
	if _, err := Tree(t.Context(), path+"2"); err != nil || there(path+"2") {
		t.Errorf("Tree = %v", err)
	}
}
