package tree

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"unbounded/internal/durable"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("needs root, and CI must not skip it")
	}
	t.Skip("SKIPPED: needs root")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newRoot is a tree beside a folder that must stay as it is.
func newRoot(t *testing.T) (root *Root, dir, outside string) {
	t.Helper()
	base := t.TempDir()
	dir, outside = filepath.Join(base, "tree"), filepath.Join(base, "outside")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o644))
	root, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root, dir, outside
}

// Whatever links an image has, a write lands inside of it.
func TestWriteStaysInside(t *testing.T) {
	for _, test := range []struct {
		name, link, target, write, lands string
	}{
		{"no link", "", "", "etc/unbounded/x", "etc/unbounded/x"},
		{"absolute link", "etc", "/outside", "etc/x", "outside/x"},
		{"link with dots", "etc", "../outside", "etc/x", "outside/x"},
		{"link that dangles", "opt", "var/opt", "opt/cni/bin/x", "var/opt/cni/bin/x"},
		{"absolute link that dangles", "opt", "/var/opt", "opt/cni/bin/x", "var/opt/cni/bin/x"},
		{"link in place of the file", "x", "../outside/secret", "x", "x"},
		{"dots in the name", "", "", "../../outside/x", "outside/x"},
		{"link to the root", "usr", "/", "usr/local/x", "local/x"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root, dir, outside := newRoot(t)
			if test.link != "" {
				must(t, os.Symlink(test.target, filepath.Join(dir, test.link)))
			}
			changed, err := root.Write(test.write, []byte("ours"), 0o640)
			if err != nil || !changed {
				t.Fatalf("Write = %v, %v", changed, err)
			}
			path := filepath.Join(dir, test.lands)
			info, err := os.Lstat(path)
			if err != nil || info.Mode() != 0o640 {
				t.Fatalf("%s: %v, %v", path, info, err)
			}
			if changed, err := root.Write(test.write, []byte("ours"), 0o640); changed || err != nil {
				t.Errorf("second Write = %v, %v, want no change", changed, err)
			}
			names, _ := os.ReadDir(outside)
			secret, _ := os.ReadFile(filepath.Join(outside, "secret"))
			if len(names) != 1 || string(secret) != "secret" {
				t.Errorf("outside: %v, secret is %q", names, secret)
			}
		})
	}
}

func TestWriteRefused(t *testing.T) {
	root, dir, _ := newRoot(t)
	must(t, os.Symlink("b", filepath.Join(dir, "a")))
	must(t, os.Symlink("a", filepath.Join(dir, "b")))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	must(t, os.Symlink("/proc/self/root/tmp", filepath.Join(dir, "proc")))
	for _, name := range []string{"a/x", "file/x", "proc/x"} {
		if _, err := root.Write(name, nil, 0o600); err == nil {
			t.Errorf("Write(%q) = nil, want an error", name)
		}
	}
}

func TestReadIgnoresWhatIsNoFile(t *testing.T) {
	root, dir, _ := newRoot(t)
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	must(t, os.Symlink("../outside/secret", filepath.Join(dir, "link")))
	must(t, os.WriteFile(filepath.Join(dir, "big"), make([]byte, 11), 0o644))
	for _, name := range []string{"fifo", "link", "big", ".", "absent"} {
		if data, err := root.ReadFile(name, 10); err == nil {
			t.Errorf("ReadFile(%q) = %q, want an error", name, data)
		}
	}
}

// A fill that fails leaves what was there, and nothing beside it.
func TestPlaceFails(t *testing.T) {
	root, dir, _ := newRoot(t)
	_, err := root.Write("bin/x", []byte("old"), 0o755)
	must(t, err)
	failure := errors.New("digest is wrong")
	err = root.Place("bin/x", 0o755, func(w io.Writer) error {
		_, _ = w.Write([]byte("half"))
		return failure
	})
	if !errors.Is(err, failure) {
		t.Fatalf("Place = %v", err)
	}
	names, _ := os.ReadDir(filepath.Join(dir, "bin"))
	data, _ := os.ReadFile(filepath.Join(dir, "bin/x"))
	if len(names) != 1 || string(data) != "old" {
		t.Errorf("bin holds %v, x is %q", names, data)
	}
}

func TestSweepFor(t *testing.T) {
	root, dir, _ := newRoot(t)
	mine, other := durable.TempName("file"), durable.TempName("file.other")
	for _, name := range []string{mine, other, "file"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	must(t, root.SweepFor("file"))
	must(t, root.SweepFor("absent/file"))
	for name, want := range map[string]bool{mine: false, other: true, "file": true} {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", name, err, want)
		}
	}
}

func TestSweep(t *testing.T) {
	root, dir, _ := newRoot(t)
	must(t, os.WriteFile(filepath.Join(dir, durable.TempName("x")), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "x"), nil, 0o600))
	must(t, root.Sweep("."))
	must(t, root.Sweep("absent"))
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("left: %v", names)
	}
}

func TestRemove(t *testing.T) {
	_, dir, outside := newRoot(t)
	for _, sub := range []string{"a/b/c", "d"} {
		must(t, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	must(t, os.Symlink(outside, filepath.Join(dir, "a/link")))
	must(t, os.WriteFile(filepath.Join(dir, "a/b/x"), nil, 0o000))
	for n := range 2000 {
		must(t, os.WriteFile(filepath.Join(dir, "d", "x"+strings.Repeat("y", n%200)+string(rune('a'+n%26))+string(rune('a'+n/26%26))+string(rune('a'+n/676))), nil, 0o644))
	}
	must(t, os.Chmod(filepath.Join(dir, "a"), 0))
	if os.Geteuid() != 0 {
		must(t, os.Chmod(filepath.Join(dir, "a"), 0o700))
	}
	must(t, Remove(dir))
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	must(t, Remove(dir))
	must(t, Remove(filepath.Join(dir, "below")))
	if _, err := os.Stat(filepath.Join(outside, "secret")); err != nil {
		t.Errorf("removed through a link: %v", err)
	}
	link := filepath.Join(filepath.Dir(dir), "link")
	must(t, os.Symlink(outside, link))
	must(t, Remove(link))
	if _, err := os.Stat(filepath.Join(outside, "secret")); err != nil {
		t.Errorf("removed through a link: %v", err)
	}
}

// A mount below the tree stops the removal, and nothing on it is touched: also not on a bind mount of the same file system.
func TestRemoveStopsAtMounts(t *testing.T) {
	needRoot(t)
	for _, test := range []struct {
		name  string
		mount func(source, target string) error
		file  bool
	}{
		{"tmpfs", func(_, target string) error { return unix.Mount("tmpfs", target, "tmpfs", 0, "size=1m") }, false},
		{"bind of the same file system", func(source, target string) error { return unix.Mount(source, target, "", unix.MS_BIND, "") }, false},
		{"bind of a file", func(source, target string) error {
			return unix.Mount(filepath.Join(source, "secret"), target, "", unix.MS_BIND, "")
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, dir, outside := newRoot(t)
			target := filepath.Join(dir, "a/b/mnt")
			must(t, os.MkdirAll(filepath.Dir(target), 0o755))
			if test.file {
				must(t, os.WriteFile(target, nil, 0o644))
			} else {
				must(t, os.Mkdir(target, 0o755))
			}
			must(t, test.mount(outside, target))
			t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
			canary := filepath.Join(target, "canary")
			if test.file {
				canary = target
			} else {
				must(t, os.WriteFile(canary, nil, 0o644))
			}
			if err := Remove(dir); !errors.Is(err, ErrMount) || !strings.Contains(err.Error(), target) {
				t.Errorf("Remove = %v, want %v that names %s", err, ErrMount, target)
			}
			if _, err := os.Stat(canary); err != nil {
				t.Errorf("the mount was touched: %v", err)
			}
			must(t, unix.Unmount(target, 0))
			must(t, Remove(dir))
		})
	}
}

func TestInspect(t *testing.T) {
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	must(t, os.Mkdir(at("empty"), 0o755))
	must(t, os.MkdirAll(at("filled/x"), 0o755))
	must(t, os.Symlink("filled", at("link")))
	must(t, os.Symlink("nowhere", at("dangling")))
	must(t, os.WriteFile(at("file"), nil, 0o644))
	for name, want := range map[string]State{
		"absent": Absent, "absent/below": Absent, "empty": Empty, "filled": Filled, "link": Symlink, "dangling": Symlink, "file": NotFolder,
	} {
		if got, err := Inspect(at(name)); got != want || err != nil {
			t.Errorf("Inspect(%s) = %v, %v, want %v", name, got, err, want)
		}
	}
	t.Run("mount", func(t *testing.T) {
		needRoot(t)
		must(t, unix.Mount(at("filled"), at("empty"), "", unix.MS_BIND, ""))
		defer func() { _ = unix.Unmount(at("empty"), 0) }()
		if got, err := Inspect(at("empty")); got != Mount || err != nil {
			t.Errorf("Inspect = %v, %v, want %v", got, err, Mount)
		}
	})
	if got, _ := classify(unix.Statx_t{Mode: unix.S_IFDIR, Ino: 256}, unix.BTRFS_SUPER_MAGIC); got != Subvolume {
		t.Errorf("classify = %v, want %v", got, Subvolume)
	}
	if _, known := classify(unix.Statx_t{Mode: unix.S_IFDIR, Ino: 256}, unix.EXT4_SUPER_MAGIC); known {
		t.Error("inode 256 of ext4 is nothing special")
	}
}

func TestFree(t *testing.T) {
	bytes, inodes, err := Free(t.TempDir())
	if err != nil || bytes <= 0 || inodes == 0 {
		t.Errorf("Free = %d, %d, %v", bytes, inodes, err)
	}
}

// Writers of one folder that has to be made do not get into each other's way.
func TestMkdirTogether(t *testing.T) {
	for range 50 {
		root, _, _ := newRoot(t)
		root.Lazy = true
		var group sync.WaitGroup
		for n := range 8 {
			group.Go(func() {
				if _, err := root.Write("usr/local/bin/"+string(rune('a'+n)), nil, 0o755); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	}
}
