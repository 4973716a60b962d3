package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"unbounded/internal/config"
	"unbounded/internal/exit"
	"unbounded/internal/journal"
	"unbounded/internal/ocitest"
	"unbounded/internal/stage"
)

// underTest is what the test calls itself when it is the helper that is to be killed.
const underTest = "unbounded-rootfs-under-test"

// victim is the helper in a process of its own.
func victim() {
	if os.Args[0] != underTest {
		return
	}
	var c config.Config
	if err := json.Unmarshal([]byte(os.Args[2]), &c); err != nil {
		panic(err)
	}
	b := newBuilder(&stage.Env{Root: os.Args[1], Slot: "kube1", Config: &c, Log: journal.To(os.Stderr)}, fakeSlots{})
	b.reserve = 1 << 20
	if err := b.converge(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (h *host) start(t *testing.T) *exec.Cmd {
	t.Helper()
	data, err := json.Marshal(h.config)
	must(t, err)
	command := exec.CommandContext(t.Context(), "/proc/self/exe")
	command.Args = []string{underTest, h.root, string(data)}
	must(t, command.Start())
	return command
}

func noise(seed byte, size int) string {
	data := make([]byte, size)
	random := rand.NewChaCha8([32]byte{seed})
	_, _ = random.Read(data)
	return string(data)
}

// bigImage takes long enough to be killed in each of its phases.
func bigImage(t *testing.T) ocitest.Image {
	t.Helper()
	var layers []ocitest.Layer
	for l := range byte(3) {
		var entries []ocitest.Entry
		for n := range 800 {
			entries = append(entries, ocitest.File(fmt.Sprintf("usr/l%d/d%d/f%d", l, n%20, n), noise(l, 100+n), 0o644))
		}
		layers = append(layers, ocitest.GzipLayer(t, append(entries, ocitest.File(fmt.Sprint("big", l), noise(l+10, 3<<20), 0o644))...))
	}
	return ocitest.New(t, runtime.GOARCH, layers...)
}

// Killed at any moment, there is no tree or a complete one, and the next run makes the same as an undisturbed one.
func TestKill(t *testing.T) {
	needRoot(t)
	image := bigImage(t)
	h := newHost(t, image)
	// In memory: what a kill leaves is the same, and twenty trees are soon written.
	base := t.TempDir()
	must(t, unix.Mount("tmpfs", base, "tmpfs", 0, "size=500m"))
	t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	h.root = filepath.Join(base, "undisturbed")
	must(t, os.Mkdir(h.root, 0o755))
	began := time.Now()
	must(t, h.start(t).Wait())
	whole := time.Since(began)
	want := hash(t, h.tree(), false)
	absent, complete, partial := 0, 0, 0
	const rounds = 20
	for round := range rounds {
		h.root = filepath.Join(base, fmt.Sprint(round))
		must(t, os.Mkdir(h.root, 0o755))
		at := time.Duration(float64(whole) * (float64(round) + rand.Float64()) / rounds)
		command := h.start(t)
		time.Sleep(at)
		_ = command.Process.Kill()
		_ = command.Wait()
		if _, err := os.Lstat(h.path("var/lib/machines/.kube1.partial")); err == nil {
			partial++
		}
		switch _, err := os.Lstat(h.tree()); {
		case errors.Is(err, fs.ErrNotExist):
			absent++
		case err != nil:
			t.Fatal(err)
		default:
			complete++
			if hash(t, h.tree(), false) != want {
				t.Errorf("killed after %s: the tree is there, and not complete", at)
			}
		}
		// A child that was just being started has the locks until it dies with its parent. Under
		// systemd the next start waits for that; here the next run does.
		err := h.converge(t, fakeSlots{})
		for deadline := time.Now().Add(5 * time.Second); exit.Of(err) == exit.Held && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
			err = h.converge(t, fakeSlots{})
		}
		if err != nil {
			t.Fatalf("killed after %s, then: %v", at, err)
		}
		if hash(t, h.tree(), false) != want {
			t.Errorf("killed after %s: the next run made another tree", at)
		}
		if names, _ := os.ReadDir(filepath.Dir(h.tree())); len(names) != 1 {
			t.Errorf("killed after %s: left %v", at, names)
		}
		must(t, os.RemoveAll(h.root))
	}
	t.Logf("undisturbed %s; after the kill: absent %d, complete %d, with a partial tree %d", whole, absent, complete, partial)
	if absent == 0 || partial == 0 {
		t.Error("no kill came before the end: the test proves nothing")
	}
}

// small mounts a small /var.
func (h *host) small(t *testing.T, size string) {
	t.Helper()
	must(t, os.MkdirAll(h.path("var"), 0o755))
	must(t, unix.Mount("tmpfs", h.path("var"), "tmpfs", 0, "size="+size))
	t.Cleanup(func() { _ = unix.Unmount(h.path("var"), unix.MNT_DETACH) })
}

func (h *host) grow(t *testing.T) {
	t.Helper()
	must(t, unix.Mount("tmpfs", h.path("var"), "tmpfs", unix.MS_REMOUNT, "size=200m"))
}

// A full disk is told with numbers, nothing but blobs to go on from is left, and with more room it goes on.
func TestFull(t *testing.T) {
	needRoot(t)
	layer := ocitest.GzipLayer(t, ocitest.File("big", noise(1, 6<<20), 0o644))
	zeros := ocitest.GzipLayer(t, ocitest.File("zeros1", strings.Repeat("\x00", 9<<20), 0o644), ocitest.File("zeros2", strings.Repeat("\x00", 9<<20), 0o644))
	members := ocitest.Layer{MediaType: zeros.MediaType, Raw: append(layer.Raw[:len(layer.Raw)-1024:len(layer.Raw)-1024], zeros.Raw...)}
	// Of two members, the last says little of the first: the check beforehand is fooled.
	members.Stored = append(ocitest.Gzip(t, members.Raw[:len(members.Raw)-1024]), ocitest.Gzip(t, members.Raw[len(members.Raw)-1024:])...)
	for _, test := range []struct {
		name, size, text string
		layer            ocitest.Layer
		blobs            int
	}{
		{"no room to fetch", "5m", "fetch the image: 7.", layer, 0},
		{"no room to unpack", "9m", "unpack the image: 7.", layer, 2},
		{"full while unpacking", "20m", "are available on the file system of", members, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newHost(t, ocitest.New(t, runtime.GOARCH, test.layer))
			h.small(t, test.size)
			err := h.converge(t, fakeSlots{})
			if err == nil || !strings.Contains(err.Error(), test.text) || !strings.Contains(err.Error(), "MB") || !strings.Contains(err.Error(), "make room there") {
				t.Fatalf("converge: %v, want %q", err, test.text)
			}
			if names, _ := os.ReadDir(h.path("var/lib/machines")); len(names) != 0 {
				t.Errorf("left: %v", names)
			}
			names, _ := os.ReadDir(h.path("var/lib/unbounded/oci/blobs/sha256"))
			if len(names) != test.blobs {
				t.Errorf("%d blobs, want %d", len(names), test.blobs)
			}
			h.grow(t)
			asked := blobRequests(h)
			must(t, h.converge(t, fakeSlots{}))
			if again := blobRequests(h) - asked; again != 2-test.blobs {
				t.Errorf("%d blobs fetched again", again)
			}
		})
	}
}

func blobRequests(h *host) int {
	n := 0
	for _, request := range h.registry.Requests() {
		if strings.Contains(request, "/blobs/") {
			n++
		}
	}
	return n
}

// When somebody else fills the disk meanwhile, what came stays and is gone on from.
func TestFullWhileFetching(t *testing.T) {
	needRoot(t)
	big := ocitest.GzipLayer(t, ocitest.File("big", noise(1, 6<<20), 0o644))
	h := newHost(t, ocitest.New(t, runtime.GOARCH, big))
	h.small(t, "20m")
	hog := h.path("var/hog")
	var ranges []string
	h.registry.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, ocitest.Sum(big.Stored)) {
			if ranges = append(ranges, r.Header.Get("Range")); len(ranges) == 1 {
				must(t, os.WriteFile(hog, make([]byte, 16<<20), 0o644))
			}
		}
		return false
	}
	if err := h.converge(t, fakeSlots{}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "MB") {
		t.Fatalf("converge: %v", err)
	}
	must(t, os.Remove(hog))
	must(t, h.converge(t, fakeSlots{}))
	if len(ranges) != 2 || !strings.HasPrefix(ranges[1], "bytes=") {
		t.Errorf("ranges %q: the second should go on", ranges)
	}
}

// A blob that rotted in the store is noticed while it is unpacked, and fetched again.
func TestRottenBlob(t *testing.T) {
	needRoot(t)
	h := newHost(t, nodeImage(t))
	must(t, h.converge(t, fakeSlots{}))
	want := hash(t, h.tree(), false)
	must(t, os.RemoveAll(h.tree()))
	blobs, err := filepath.Glob(h.path("var/lib/unbounded/oci/blobs/sha256/*"))
	must(t, err)
	for _, blob := range blobs {
		file, err := os.OpenFile(blob, os.O_RDWR, 0)
		must(t, err)
		_, err = file.WriteAt([]byte("rot"), 20)
		must(t, errors.Join(err, file.Close()))
	}
	must(t, h.converge(t, fakeSlots{}))
	if hash(t, h.tree(), false) != want {
		t.Error("another tree")
	}
}

// A tag that moves between manifest and blobs gives one of the two images, never a mix.
func TestTagMoves(t *testing.T) {
	needRoot(t)
	first := ocitest.New(t, runtime.GOARCH, ocitest.GzipLayer(t, ocitest.File("one", "1", 0o644)))
	second := ocitest.New(t, runtime.GOARCH, ocitest.GzipLayer(t, ocitest.File("two", "2", 0o644)))
	h := newHost(t, first)
	moved := false
	h.registry.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") && !moved {
			moved = true
			h.registry.Push("node", "v1", second)
			for sum := range first.Blobs {
				h.registry.Remove(sum)
			}
		}
		return false
	}
	must(t, h.converge(t, fakeSlots{}))
	if _, err := os.Stat(filepath.Join(h.tree(), "two")); err != nil || !moved {
		t.Errorf("moved %v, %v", moved, err)
	}
	if _, err := os.Stat(filepath.Join(h.tree(), "one")); err == nil {
		t.Error("a mix of both")
	}
}

// A mirror that does not keep its promise stops the build before anything gets its name.
func TestMirrorFails(t *testing.T) {
	needRoot(t)
	h := newHost(t, nodeImage(t))
	for path := range h.mirror.files {
		if strings.HasSuffix(path, "/kubelet") {
			h.mirror.files[path] = []byte("something else")
		}
	}
	err := h.converge(t, fakeSlots{})
	if err == nil || !strings.Contains(err.Error(), "kubelet "+kubeVersion) || !strings.Contains(err.Error(), "not the promised content") {
		t.Fatalf("converge: %v", err)
	}
	if names, _ := os.ReadDir(h.path("var/lib/machines")); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
	// The operator moves the mirror: the same installation, and the new place is used.
	h.mirror = newMirror(t)
	h.config.Downloads = h.mirror.downloads()
	must(t, h.converge(t, fakeSlots{}))
}
