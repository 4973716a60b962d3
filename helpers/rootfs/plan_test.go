package main

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"unbounded/internal/config"
	"unbounded/internal/content"
	"unbounded/internal/exit"
	"unbounded/internal/inventory"
	"unbounded/internal/oci"
	"unbounded/internal/ocitest"
	"unbounded/internal/restart"
	"unbounded/internal/tree"
)

func TestPlan(t *testing.T) {
	image, err := oci.Parse("r.test/node:v1")
	if err != nil {
		t.Fatal(err)
	}
	mine := &inventory.Inventory{Image: inventory.Image{Reference: "r.test/node:v1"}}
	other := &inventory.Inventory{Image: inventory.Image{Reference: "r.test/node:v0"}}
	for _, test := range []struct {
		name   string
		found  found
		want   step
		err    string
		status exit.Status
	}{
		{"absent", found{state: tree.Absent}, build, "", exit.OK},
		{"empty", found{state: tree.Empty}, build, "", exit.OK},
		{"complete", found{state: tree.Filled, have: mine}, repair, "", exit.OK},
		{"complete and running", found{state: tree.Filled, have: mine, runs: true}, repair, "", exit.OK},
		{"running, of another image", found{state: tree.Filled, have: other, runs: true}, leave, "built from image r.test/node:v0", exit.Refused},
		{"running, not built by us", found{state: tree.Filled, runs: true}, leave, "", exit.OK},
		{"running, and gone", found{state: tree.Absent, runs: true}, leave, "the machine runs, but /m/kube1 is absent", exit.Failed},
		{"running, and a link", found{state: tree.Symlink, runs: true}, leave, "is a symbolic link: stop the machine", exit.Failed},
		{"of another image", found{state: tree.Filled, have: other}, leave, "built from image r.test/node:v0", exit.Refused},
		{"foreign", found{state: tree.Filled}, leave, "not empty, and nothing that we built", exit.Refused},
		{"mount", found{state: tree.Mount}, leave, "is a mount point: unmount it", exit.Refused},
		{"symlink", found{state: tree.Symlink}, leave, "is a symbolic link: remove it", exit.Refused},
		{"subvolume", found{state: tree.Subvolume}, leave, "is a btrfs subvolume", exit.Refused},
		{"file", found{state: tree.NotFolder}, leave, "is not a folder", exit.Refused},
	} {
		got, err := plan("/m/kube1", image, test.found)
		if got != test.want || exit.Of(err) != test.status || (err != nil && !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%s: plan = %v, %v (%d), want %v, %q (%d)", test.name, got, err, exit.Of(err), test.want, test.err, test.status)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *host) refused(t *testing.T, slots slots, status exit.Status, text string) {
	t.Helper()
	before := hash(t, h.root, true)
	err := h.converge(t, slots)
	if err == nil || exit.Of(err) != status || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
		t.Errorf("converge: %v (%d), want %q (%d)", err, exit.Of(err), text, status)
	}
	if hash(t, h.root, true) != before {
		t.Error("something was changed")
	}
}

// What is in the way is named and stays as it is.
func TestInTheWay(t *testing.T) {
	needRoot(t)
	for _, test := range []struct {
		name, text string
		make       func(h *host) error
		slots      fakeSlots
		status     exit.Status
	}{
		{"foreign folder", "not empty, and nothing that we built", func(h *host) error { return os.MkdirAll(filepath.Join(h.tree(), "x"), 0o755) }, fakeSlots{}, exit.Refused},
		{"symlink", "symbolic link", func(h *host) error { return os.Symlink("kube2", h.tree()) }, fakeSlots{}, exit.Refused},
		{"file", "not a folder", func(h *host) error { return os.WriteFile(h.tree(), nil, 0o644) }, fakeSlots{}, exit.Refused},
		{"mount", "mount point", func(h *host) error {
			return errors.Join(os.Mkdir(h.tree(), 0o755), unix.Mount("tmpfs", h.tree(), "tmpfs", 0, "size=1m"))
		}, fakeSlots{}, exit.Refused},
		{"running, gone", "stop the machine", func(*host) error { return nil }, fakeSlots{runs: true}, exit.Failed},
		{"cannot tell", "bus is away", func(*host) error { return nil }, fakeSlots{err: errors.New("bus is away")}, exit.Failed},
		{"inventory of another release", "schemaVersion 7", func(h *host) error {
			path := filepath.Join(h.tree(), inventory.Path)
			return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(`{"schemaVersion":7}`), 0o600))
		}, fakeSlots{}, exit.Failed},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newHost(t, nodeImage(t))
			must(t, os.MkdirAll(filepath.Dir(h.tree()), 0o700))
			must(t, test.make(h))
			t.Cleanup(func() { _ = unix.Unmount(h.tree(), unix.MNT_DETACH) })
			h.refused(t, test.slots, test.status, test.text)
		})
	}
}

// What a killed attempt or nspawn left beside does not matter.
func TestLeftovers(t *testing.T) {
	needRoot(t)
	h := newHost(t, nodeImage(t))
	partial := h.path("var/lib/machines/.kube1.partial")
	lock := h.path("var/lib/machines/.#kube1.lck")
	must(t, os.MkdirAll(filepath.Join(partial, "etc/locked"), 0o755))
	must(t, os.WriteFile(filepath.Join(partial, "etc/motd"), []byte("half"), 0o644))
	must(t, os.Symlink("/etc", filepath.Join(partial, "link")))
	must(t, os.WriteFile(lock, nil, 0o600))
	must(t, os.MkdirAll(h.path("var/lib/unbounded/oci/ingest"), 0o755))
	must(t, os.WriteFile(h.path("var/lib/unbounded/oci/ingest/foreign"), nil, 0o644))
	must(t, os.MkdirAll(h.tree(), 0o755)) // an empty one is no obstacle
	must(t, h.converge(t, fakeSlots{}))
	for _, gone := range []string{partial, h.path("var/lib/unbounded/oci/ingest")} {
		if _, err := os.Lstat(gone); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", gone, err)
		}
	}
	if _, err := os.Lstat(lock); err != nil {
		t.Errorf("the lock file of nspawn: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(h.tree(), "link")); err == nil {
		t.Error("the leftover got into the tree")
	}

	// Beside a complete tree it goes, too; on a mount nothing does.
	must(t, os.MkdirAll(filepath.Join(partial, "mnt"), 0o755))
	must(t, unix.Mount("tmpfs", filepath.Join(partial, "mnt"), "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(partial, "mnt"), unix.MNT_DETACH) })
	must(t, os.WriteFile(filepath.Join(partial, "mnt/canary"), nil, 0o644))
	h.refused(t, fakeSlots{}, exit.Failed, "unmount it first")
	must(t, unix.Unmount(filepath.Join(partial, "mnt"), 0))
	must(t, h.converge(t, fakeSlots{}))
	if _, err := os.Lstat(partial); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", partial, err)
	}
}

// A program that is missing or changed is put back, also while the machine runs, and nothing else moves.
func TestDrift(t *testing.T) {
	needRoot(t)
	h := newHost(t, nodeImage(t))
	must(t, h.converge(t, fakeSlots{}))
	kubelet, top := filepath.Join(h.tree(), "usr/local/bin/kubelet"), stat(t, h.tree())
	h.registry.Close()
	h.mirror.Close()
	for name, damage := range map[string]func() error{
		"removed": func() error { return os.Remove(kubelet) },
		"changed": func() error { return os.WriteFile(kubelet, []byte("program kubelex"), 0o755) },
		"mode":    func() error { return os.Chmod(kubelet, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			must(t, damage())
			killed := filepath.Join(filepath.Dir(kubelet), ".kubelet.unbounded-tmp-0123")
			must(t, os.WriteFile(killed, nil, 0o600))
			must(t, h.converge(t, fakeSlots{runs: true}))
			if _, err := os.Lstat(killed); err == nil {
				t.Error("what a killed repair left is still there")
			}
			data, err := os.ReadFile(kubelet)
			info, _ := os.Stat(kubelet)
			if err != nil || string(data) != "program kubelet" || info.Mode() != 0o755 {
				t.Errorf("kubelet is %q, %v, %v", data, info, err)
			}
			if now := stat(t, h.tree()); now.Ino != top.Ino {
				t.Error("the tree was replaced")
			}
			before := hash(t, h.root, true)
			must(t, h.converge(t, fakeSlots{runs: true}))
			if hash(t, h.root, true) != before {
				t.Error("the run after the repair changed something")
			}
		})
	}
}

func stat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var s unix.Stat_t
	must(t, unix.Lstat(path, &s))
	return s
}

func TestSecondRunIsQuick(t *testing.T) {
	needRoot(t)
	h := newHost(t, nodeImage(t))
	must(t, h.converge(t, fakeSlots{}))
	best := time.Hour
	for range 5 {
		began := time.Now()
		must(t, h.converge(t, fakeSlots{}))
		best = min(best, time.Since(began))
	}
	if best > 500*time.Millisecond {
		t.Errorf("took %s at best, want less than 500 ms", best)
	}
}

func TestNotBuiltByUsAndRunning(t *testing.T) {
	needRoot(t)
	h := newHost(t, nodeImage(t))
	must(t, os.MkdirAll(filepath.Join(h.tree(), "x"), 0o755))
	before := hash(t, h.root, true)
	must(t, h.converge(t, fakeSlots{runs: true}))
	if hash(t, h.root, true) != before || !strings.Contains(h.log.String(), "left alone") {
		t.Errorf("changed, or said nothing: %q", h.log.String())
	}
}

// A hostile image is refused, and what is beside its tree survives.
func TestHostileImage(t *testing.T) {
	needRoot(t)
	h := newHost(t, ocitest.New(t, runtime.GOARCH, ocitest.GzipLayer(t, ocitest.File("x", "", 0o644), ocitest.File(".wh...", "", 0o644))))
	must(t, os.MkdirAll(h.path("var/lib/machines/kube2/etc"), 0o755))
	err := h.converge(t, fakeSlots{})
	if exit.Of(err) != exit.Refused || !strings.Contains(err.Error(), "refused") {
		t.Errorf("converge: %v (%d)", err, exit.Of(err))
	}
	names, _ := os.ReadDir(h.path("var/lib/machines"))
	if len(names) != 1 || names[0].Name() != "kube2" {
		t.Errorf("machines: %v", names)
	}
}

// An image whose folders are links cannot lead our own writes out of the tree.
func TestImageOfLinks(t *testing.T) {
	needRoot(t)
	outside := t.TempDir()
	h := newHost(t, ocitest.New(t, runtime.GOARCH, ocitest.GzipLayer(t,
		ocitest.Link('2', "etc", outside), ocitest.Link('2', "usr", "../../../../../../.."+outside), ocitest.Link('2', "opt", "/var/opt"))))
	must(t, h.converge(t, fakeSlots{}))
	if names, _ := os.ReadDir(outside); len(names) != 0 {
		t.Errorf("outside: %v", names)
	}
	if _, err := os.Stat(filepath.Join(h.tree(), "var/opt/cni/bin/loopback")); err != nil {
		t.Error(err)
	}
	must(t, h.converge(t, fakeSlots{}))
}

func TestBuilderIsAlone(t *testing.T) {
	needRoot(t)
	h := newHost(t, nodeImage(t))
	store, err := content.Open(h.path("var/lib/unbounded/oci"))
	must(t, err)
	must(t, os.MkdirAll(h.path("var/lib/machines/.kube1.partial/x"), 0o755))
	h.refused(t, fakeSlots{}, exit.Held, "in use by another build")
	must(t, store.Close())
	must(t, h.converge(t, fakeSlots{}))
}

func TestCanceled(t *testing.T) {
	needRoot(t)
	h := newHost(t, nodeImage(t))
	ctx, cancel := context.WithCancel(t.Context())
	h.mirror.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { // the tree is unpacked by now
		cancel()
		<-r.Context().Done()
	})
	err := h.builder(fakeSlots{}).converge(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("converge: %v", err)
	}
	names, _ := os.ReadDir(h.path("var/lib/machines"))
	if len(names) != 0 {
		t.Errorf("left: %v", names)
	}
}

// Another version is placed into a tree that runs, and its service is marked for a restart; the same program put back is not.
func TestAnotherVersionIsMarked(t *testing.T) {
	needRoot(t)
	h := newHost(t, nodeImage(t))
	must(t, h.converge(t, fakeSlots{}))
	mark := restart.Of(h.root, "kube1", "containerd")
	must(t, os.Remove(filepath.Join(h.tree(), "usr/local/bin/containerd")))
	must(t, h.converge(t, fakeSlots{runs: true}))
	if pending, err := mark.Pending(); pending || err != nil {
		t.Errorf("put back: marked %v, %v", pending, err)
	}
	source := h.config.Downloads[config.Containerd]
	source.Version = "2.1.9"
	h.config.Downloads[config.Containerd] = source
	for path, data := range h.mirror.files {
		h.mirror.files[strings.ReplaceAll(path, containerdVersion, source.Version)] = data
	}
	must(t, h.converge(t, fakeSlots{runs: true}))
	if pending, err := mark.Pending(); !pending || err != nil {
		t.Errorf("another version: marked %v, %v", pending, err)
	}
}

// A source that nothing may be fetched from is refused before anything is done.
func TestPlainMirrorRefused(t *testing.T) {
	h := newHost(t, nodeImage(t))
	h.config.Downloads[config.Runc] = config.Source{BaseURL: "http://mirror.example.test", Version: "1.0.0"}
	h.refused(t, fakeSlots{}, exit.Refused, "runc 1.0.0: http://mirror.example.test/v1.0.0/runc."+runtime.GOARCH+": plain http")
}
