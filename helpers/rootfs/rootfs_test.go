package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"unbounded/internal/config"
	"unbounded/internal/journal"
	"unbounded/internal/ocitest"
	"unbounded/internal/stage"
	"unbounded/internal/unpack"
)

func TestMain(m *testing.M) {
	unpack.Child()
	victim()
	os.Exit(m.Run())
}

// needRoot ends a test that cannot be without root: skipped on a desk, failed in CI.
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

type fakeSlots struct {
	runs bool
	err  error
}

func (f fakeSlots) SlotRuns(context.Context, string) (bool, error) { return f.runs, f.err }

// mirror serves node binaries in the public layout and counts requests.
type mirror struct {
	*httptest.Server
	files map[string][]byte
	count atomic.Int64
}

const (
	kubeVersion, containerdVersion, runcVersion, cniVersion, crictlVersion = "1.34.0", "2.1.8", "1.5.0", "1.5.1", "1.34.0"
)

func newMirror(t *testing.T) *mirror {
	t.Helper()
	m := &mirror{files: map[string][]byte{}}
	arch := runtime.GOARCH
	add := func(path, sums string, data []byte) {
		m.files[path] = data
		m.files[sums] = []byte(ocitest.Sum(data) + "  " + filepath.Base(path) + "\n")
	}
	program := func(name string) ocitest.Entry { return ocitest.File(name, "program "+name, 0o755) }
	for _, name := range []string{"kubelet", "kubectl", "kube-proxy"} {
		path := "/k/v" + kubeVersion + "/bin/linux/" + arch + "/" + name
		add(path, path+".sha256", []byte("program "+name))
	}
	path := "/c/v" + containerdVersion + "/containerd-" + containerdVersion + "-linux-" + arch + ".tar.gz"
	add(path, path+".sha256sum", ocitest.Gzip(t, ocitest.Tar(t,
		ocitest.Dir("bin/", 0o755), program("bin/containerd"), program("bin/containerd-shim-runc-v2"), program("bin/ctr"))))
	add("/r/v"+runcVersion+"/runc."+arch, "/r/v"+runcVersion+"/runc.sha256sum", []byte("program runc"))
	path = "/n/v" + cniVersion + "/cni-plugins-linux-" + arch + "-v" + cniVersion + ".tgz"
	add(path, path+".sha256", ocitest.Gzip(t, ocitest.Tar(t,
		program("./bridge"), program("./host-local"), program("./loopback"), program("./portmap"), ocitest.File("./LICENSE", "text", 0o644))))
	path = "/t/v" + crictlVersion + "/crictl-v" + crictlVersion + "-linux-" + arch + ".tar.gz"
	add(path, path+".sha256", ocitest.Gzip(t, ocitest.Tar(t, program("crictl"))))
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.count.Add(1)
		data, ok := m.files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}))
	t.Cleanup(m.Close)
	return m
}

func (m *mirror) downloads() map[config.Artifact]config.Source {
	return map[config.Artifact]config.Source{
		config.Kubernetes: {BaseURL: m.URL + "/k", Version: kubeVersion},
		config.Containerd: {BaseURL: m.URL + "/c", Version: containerdVersion},
		config.Runc:       {BaseURL: m.URL + "/r", Version: runcVersion},
		config.CNI:        {BaseURL: m.URL + "/n", Version: cniVersion},
		config.Crictl:     {BaseURL: m.URL + "/t", Version: crictlVersion},
	}
}

// host is one host under test.
type host struct {
	root     string
	log      strings.Builder
	registry *ocitest.Registry
	mirror   *mirror
	config   *config.Config
}

func newHost(t *testing.T, image ocitest.Image) *host {
	t.Helper()
	h := &host{root: t.TempDir(), registry: ocitest.Serve(t), mirror: newMirror(t)}
	h.config = &config.Config{Image: h.registry.Push("node", "v1", image), Downloads: h.mirror.downloads()}
	return h
}

func (h *host) path(elem ...string) string {
	return filepath.Join(append([]string{h.root}, elem...)...)
}

func (h *host) tree() string { return h.path("var/lib/machines/kube1") }

func (h *host) builder(slots slots) *builder {
	b := newBuilder(&stage.Env{Root: h.root, Slot: "kube1", Config: h.config, Log: journal.To(&h.log)}, slots)
	b.client.Tries = 2
	b.reserve = 1 << 20
	return b
}

func (h *host) converge(t *testing.T, slots slots) error {
	t.Helper()
	return h.builder(slots).converge(t.Context())
}

func nodeImage(t *testing.T) ocitest.Image {
	t.Helper()
	return ocitest.New(t, runtime.GOARCH,
		ocitest.GzipLayer(t,
			ocitest.Dir("etc/", 0o755), ocitest.File("etc/os-release", "ID=test\n", 0o644), ocitest.Dir("usr/", 0o755),
			ocitest.Dir("usr/local/", 0o755), ocitest.Dir("usr/local/bin/", 0o755), ocitest.Dir("var/", 0o755),
			ocitest.File("etc/unbounded/image.json", `{"schemaVersion":1}`, 0o600),
			ocitest.File("etc/unbounded/built.json", `{}`, 0o600)),
		ocitest.GzipLayer(t, ocitest.File("etc/motd", "hello", 0o644), ocitest.File("etc/.wh.nothing", "", 0)),
	)
}

// hash is the hash of everything below dir: names, kinds, modes, owners, times and content.
func hash(t *testing.T, dir string, times bool) string {
	t.Helper()
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		fmt.Fprintf(sum, "%q %v %d:%d", strings.TrimPrefix(path, dir), info.Mode(), stat.Uid, stat.Gid)
		if times {
			fmt.Fprintf(sum, " %d %d", info.ModTime().UnixNano(), stat.Ino)
		}
		switch {
		case info.Mode().IsRegular() && info.Name() == "image.json" && !times:
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum.Write(data)
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			fmt.Fprint(sum, target)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func TestConvergeBuildsOnceAndWritesNothingTwice(t *testing.T) {
	needRoot(t)
	h := newHost(t, nodeImage(t))
	if err := h.converge(t, fakeSlots{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"etc/motd": "hello", "usr/local/bin/kubelet": "program kubelet", "usr/local/bin/containerd": "program bin/containerd",
		"usr/local/bin/runc": "program runc", "opt/cni/bin/loopback": "program ./loopback", "usr/local/bin/crictl": "program crictl",
	} {
		if got, err := os.ReadFile(filepath.Join(h.tree(), name)); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v, want %q", name, got, err, want)
		}
	}
	if _, err := os.Lstat(filepath.Join(h.tree(), "etc/unbounded/built.json")); err == nil {
		t.Error("the image brought its own built.json along")
	}
	before, asked := hash(t, h.root, true), h.mirror.count.Load()+int64(len(h.registry.Requests()))
	if err := h.converge(t, fakeSlots{}); err != nil {
		t.Fatal(err)
	}
	if err := h.converge(t, fakeSlots{runs: true}); err != nil {
		t.Fatal(err)
	}
	if hash(t, h.root, true) != before {
		t.Error("the second run changed something")
	}
	if again := h.mirror.count.Load() + int64(len(h.registry.Requests())); again != asked {
		t.Errorf("the second run sent %d requests, want none", again-asked)
	}
}
