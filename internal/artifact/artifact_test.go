package artifact

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/config"
	"unbounded/internal/content"
	"unbounded/internal/fetch"
	"unbounded/internal/inventory"
	"unbounded/internal/ocitest"
	"unbounded/internal/tree"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPlan(t *testing.T) {
	versions := map[config.Artifact]config.Source{
		config.Kubernetes: {Version: "1.34.0"}, config.Containerd: {Version: "2.1.8"}, config.Runc: {Version: "1.5.0"},
		config.CNI: {Version: "1.5.1"}, config.Crictl: {Version: "1.34.0"},
	}
	type want struct{ Name, URL, Sums, Dest string }
	got := func(sources map[config.Artifact]config.Source, arch string) []want {
		var out []want
		for _, i := range Plan(sources, arch) {
			out = append(out, want{i.Name, i.URL, i.Sums, i.Dest})
		}
		return out
	}
	public := []want{
		{"kubelet", "https://dl.k8s.io/v1.34.0/bin/linux/amd64/kubelet", "https://dl.k8s.io/v1.34.0/bin/linux/amd64/kubelet.sha256", "/usr/local/bin/kubelet"},
		{"kubectl", "https://dl.k8s.io/v1.34.0/bin/linux/amd64/kubectl", "https://dl.k8s.io/v1.34.0/bin/linux/amd64/kubectl.sha256", "/usr/local/bin/kubectl"},
		{"kube-proxy", "https://dl.k8s.io/v1.34.0/bin/linux/amd64/kube-proxy", "https://dl.k8s.io/v1.34.0/bin/linux/amd64/kube-proxy.sha256", "/usr/local/bin/kube-proxy"},
		{"containerd", "https://github.com/containerd/containerd/releases/download/v2.1.8/containerd-2.1.8-linux-amd64.tar.gz", "https://github.com/containerd/containerd/releases/download/v2.1.8/containerd-2.1.8-linux-amd64.tar.gz.sha256sum", "/usr/local/bin"},
		{"runc", "https://github.com/opencontainers/runc/releases/download/v1.5.0/runc.amd64", "https://github.com/opencontainers/runc/releases/download/v1.5.0/runc.sha256sum", "/usr/local/bin/runc"},
		{"cni-plugins", "https://github.com/containernetworking/plugins/releases/download/v1.5.1/cni-plugins-linux-amd64-v1.5.1.tgz", "https://github.com/containernetworking/plugins/releases/download/v1.5.1/cni-plugins-linux-amd64-v1.5.1.tgz.sha256", "/opt/cni/bin"},
		{"crictl", "https://github.com/kubernetes-sigs/cri-tools/releases/download/v1.34.0/crictl-v1.34.0-linux-amd64.tar.gz", "https://github.com/kubernetes-sigs/cri-tools/releases/download/v1.34.0/crictl-v1.34.0-linux-amd64.tar.gz.sha256", "/usr/local/bin"},
	}
	if diff := cmp.Diff(public, got(versions, "amd64")); diff != "" {
		t.Errorf("public (-want +got):\n%s", diff)
	}
	// A template gets version, architecture and the rest in the public agent's order; a signature stays at the end.
	own := map[config.Artifact]config.Source{
		config.Kubernetes: {Version: "1.34.0", URL: "https://m.test/%s/%s/%s?sig=1", BaseURL: "https://unused.test"},
		config.Containerd: {Version: "2.1.8", URL: "https://m.test/%s/c-%s-%s.tgz?sig=a%%2Fb"},
		config.Runc:       {Version: "1.5.0", URL: "https://m.test/runc-%s/runc.%s"},
		config.CNI:        {Version: "1.5.1", BaseURL: "http://10.0.0.1/cni/"},
		config.Crictl:     {Version: "1.34.0", URL: "https://m.test/fixed.tgz", SHA256: strings.Repeat("a", 64)},
	}
	if diff := cmp.Diff([]want{
		{"kubelet", "https://m.test/1.34.0/arm64/kubelet?sig=1", "https://m.test/1.34.0/arm64/kubelet.sha256?sig=1", "/usr/local/bin/kubelet"},
		{"kubectl", "https://m.test/1.34.0/arm64/kubectl?sig=1", "https://m.test/1.34.0/arm64/kubectl.sha256?sig=1", "/usr/local/bin/kubectl"},
		{"kube-proxy", "https://m.test/1.34.0/arm64/kube-proxy?sig=1", "https://m.test/1.34.0/arm64/kube-proxy.sha256?sig=1", "/usr/local/bin/kube-proxy"},
		{"containerd", "https://m.test/2.1.8/c-2.1.8-arm64.tgz?sig=a%2Fb", "https://m.test/2.1.8/c-2.1.8-arm64.tgz.sha256sum?sig=a%2Fb", "/usr/local/bin"},
		{"runc", "https://m.test/runc-1.5.0/runc.arm64", "https://m.test/runc-1.5.0/runc.sha256sum", "/usr/local/bin/runc"},
		{"cni-plugins", "http://10.0.0.1/cni/v1.5.1/cni-plugins-linux-arm64-v1.5.1.tgz", "http://10.0.0.1/cni/v1.5.1/cni-plugins-linux-arm64-v1.5.1.tgz.sha256", "/opt/cni/bin"},
		{"crictl", "https://m.test/fixed.tgz", "", "/usr/local/bin"},
	}, got(own, "arm64")); diff != "" {
		t.Errorf("own (-want +got):\n%s", diff)
	}
}

func TestParseSums(t *testing.T) {
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	for _, test := range []struct{ name, text, want string }{
		{"alone", a, a},
		{"alone, with a newline", a + "\r\n", a},
		{"upper case", strings.ToUpper(a), a},
		{"with a name", a + "  runc.amd64\n", a},
		{"binary mark and folder", b + " *x\n" + a + " *./bin/runc.amd64\n", a},
		{"one of several", b + "  runc.arm64\n" + a + "  runc.amd64\n", a},
		{"the only line, of another name", a + "  other\n", a},
		{"several, none ours", a + "  x\n" + b + "  y\n", ""},
		{"a web page", "<html>" + a + "</html>", ""},
		{"empty", "", ""},
		{"too short", a[1:], ""},
		{"sha512", a + a, ""},
	} {
		if got, err := parseSums(test.text, "runc.amd64"); got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s: parseSums = %q, %v, want %q", test.name, got, err, test.want)
		}
	}
}

// rig is a tree, a store and a mirror.
type rig struct {
	*Placer
	dir      string
	files    map[string][]byte
	requests []string
	server   *httptest.Server
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{dir: t.TempDir(), files: map[string][]byte{}}
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.requests = append(r.requests, req.URL.Path)
		data, ok := r.files[req.URL.Path]
		if !ok {
			http.NotFound(w, req)
			return
		}
		http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(data))
	}))
	t.Cleanup(r.server.Close)
	store, err := content.Open(filepath.Join(t.TempDir(), "oci"))
	must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	root, err := tree.Open(r.dir)
	must(t, err)
	t.Cleanup(func() { _ = root.Close() })
	r.Placer = &Placer{Client: &fetch.Client{HTTP: fetch.NewHTTP(), Tries: 1}, Store: store, Root: root}
	return r
}

// item is the one of a kind, served by the rig with data and its digest beside it.
func (r *rig) item(t *testing.T, artifact config.Artifact, data []byte) Item {
	t.Helper()
	for _, k := range kinds() {
		if k.artifact == artifact {
			item := k.items(config.Source{BaseURL: r.server.URL, Version: "1.0.0"}, "amd64")[0]
			r.files[strings.TrimPrefix(item.URL, r.server.URL)] = data
			r.files[strings.TrimPrefix(item.Sums, r.server.URL)] = []byte(ocitest.Sum(data) + "  " + fileName(item.URL) + "\n")
			return item
		}
	}
	t.Fatal("no such kind")
	return Item{}
}

func (r *rig) read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		return "(" + err.Error() + ")"
	}
	return string(data)
}

func program(name, body string) ocitest.Entry { return ocitest.File(name, body, 0o755) }

func bundle(t *testing.T, version string) []byte {
	t.Helper()
	return ocitest.Gzip(t, ocitest.Tar(t, ocitest.Dir("bin/", 0o755), program("bin/containerd", "containerd "+version),
		program("bin/containerd-shim-runc-v2", "shim "+version), program("bin/ctr", "ctr "+version), ocitest.File("README", "x", 0o644)))
}

func TestPlaceAndRepair(t *testing.T) {
	r := newRig(t)
	item := r.item(t, config.Containerd, bundle(t, "1"))
	have, err := r.Fresh(t.Context(), item)
	must(t, err)
	if len(have.Files) != 3 || r.read(t, "usr/local/bin/ctr") != "ctr 1" || r.read(t, "usr/local/bin/README")[0] != '(' {
		t.Fatalf("placed: %+v", have)
	}
	stale := func(item Item) string {
		t.Helper()
		why, err := Stale(r.Root, item, have)
		must(t, err)
		return why
	}
	if why := stale(item); why != "" {
		t.Errorf("just placed, and stale: %s", why)
	}
	other, err := os.Stat(filepath.Join(r.dir, "usr/local/bin/containerd"))
	must(t, err)
	asked := len(r.requests)
	for name, damage := range map[string]func(path string) error{
		"missing":    os.Remove,
		"changed":    func(path string) error { return os.WriteFile(path, []byte("ctr X"), 0o755) },
		"mode":       func(path string) error { return os.Chmod(path, 0o644) },
		"a link":     func(path string) error { _ = os.Remove(path); return os.Symlink("/bin/true", path) },
		"a big file": func(path string) error { return os.WriteFile(path, make([]byte, 100), 0o755) },
	} {
		must(t, damage(filepath.Join(r.dir, "usr/local/bin/ctr")))
		if stale(item) == "" {
			t.Errorf("%s: not noticed", name)
		}
		have, err = r.Place(t.Context(), item, have)
		must(t, err)
		if info, err := os.Lstat(filepath.Join(r.dir, "usr/local/bin/ctr")); err != nil || info.Mode() != 0o755 || r.read(t, "usr/local/bin/ctr") != "ctr 1" || stale(item) != "" {
			t.Errorf("%s: not repaired: %v", name, err)
		}
	}
	if len(r.requests) != asked {
		t.Errorf("repair asked for %v, want nothing", r.requests[asked:])
	}
	if now, _ := os.Stat(filepath.Join(r.dir, "usr/local/bin/containerd")); !os.SameFile(other, now) {
		t.Error("a program that was right was replaced")
	}
	// A time that changed alone is nothing to repair.
	must(t, os.Chtimes(filepath.Join(r.dir, "usr/local/bin/ctr"), time.Time{}, time.Unix(1, 0)))
	if why := stale(item); why != "" {
		t.Errorf("touched: %s", why)
	}
	// A stored download that rotted is fetched again.
	must(t, os.WriteFile(r.Store.Path(have.SHA256), []byte("rot"), 0o600))
	must(t, os.Remove(filepath.Join(r.dir, "usr/local/bin/ctr")))
	_, err = r.Place(t.Context(), item, have)
	must(t, err)
	// Another version is placed over it.
	next := r.item(t, config.Containerd, bundle(t, "2"))
	next.Version, next.URL = "2.0.0", next.URL+"?v=2"
	if why := stale(next); why != "version is 1.0.0, want 2.0.0" {
		t.Errorf("stale: %q", why)
	}
	have, err = r.Place(t.Context(), next, have)
	must(t, err)
	if r.read(t, "usr/local/bin/ctr") != "ctr 2" || stale(next) != "" {
		t.Errorf("ctr is %q", r.read(t, "usr/local/bin/ctr"))
	}
}

// Nothing of a download that is not the promised one is placed.
func TestNotPlaced(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 1000)
	for _, test := range []struct {
		name     string
		artifact config.Artifact
		change   func(r *rig, item *Item)
		err      string
	}{
		{"other bytes than published", config.Runc, func(r *rig, _ *Item) { r.files["/v1.0.0/runc.amd64"] = big }, "not the promised content"},
		{"other bytes than pinned", config.Runc, func(_ *rig, item *Item) { item.SHA256 = strings.Repeat("a", 64) }, "not the promised content"},
		{"no published digest", config.Runc, func(r *rig, _ *Item) { delete(r.files, "/v1.0.0/runc.sha256sum") }, "no published digest"},
		{"a web page for a digest", config.Runc, func(r *rig, _ *Item) { r.files["/v1.0.0/runc.sha256sum"] = []byte("<html>") }, "holds no SHA-256"},
		{"no download", config.Runc, func(r *rig, _ *Item) { delete(r.files, "/v1.0.0/runc.amd64") }, "answered 404"},
		{"not an archive", config.Containerd, nil, "read archive"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			item := r.item(t, test.artifact, []byte("right"))
			if test.change != nil {
				test.change(r, &item)
			}
			_, err := r.Fresh(t.Context(), item)
			if err == nil || !strings.Contains(err.Error(), test.err) || !strings.Contains(err.Error(), item.Name) || strings.Contains(err.Error(), "\n") {
				t.Errorf("Fresh: %v, want %q and %s", err, test.err, item.Name)
			}
			if names, _ := os.ReadDir(filepath.Join(r.dir, "usr/local/bin")); len(names) != 0 {
				t.Errorf("placed: %v", names)
			}
		})
	}
}

func TestHostileArchive(t *testing.T) {
	r := newRig(t)
	item := r.item(t, config.Containerd, ocitest.Gzip(t, ocitest.Tar(t,
		program("bin/../../x", "x"), program("/bin/abs", "x"), program("bin/a/b", "x"), program("other/containerd", "x"),
		ocitest.Link(tar.TypeSymlink, "bin/link", "/etc/passwd"), ocitest.Link(tar.TypeLink, "bin/hard", "/etc/passwd"),
		program("bin/containerd", "ok"), program("bin/containerd-shim-runc-v2", "ok"))))
	have, err := r.Fresh(t.Context(), item)
	must(t, err)
	names, _ := os.ReadDir(filepath.Join(r.dir, "usr/local/bin"))
	if len(have.Files) != 2 || len(names) != 2 {
		t.Errorf("placed: %v", names)
	}
	missing := r.item(t, config.CNI, ocitest.Gzip(t, ocitest.Tar(t, program("./bridge", "x"))))
	if _, err := r.Fresh(t.Context(), missing); err == nil || !strings.Contains(err.Error(), "holds no program host-local") {
		t.Errorf("Fresh: %v", err)
	}
}

// A pinned download needs no published digest, and a retry no network at all.
func TestRetryNeedsNoNetwork(t *testing.T) {
	r := newRig(t)
	item := r.item(t, config.Runc, []byte("runc"))
	_, err := r.Fresh(t.Context(), item)
	must(t, err)
	must(t, os.RemoveAll(filepath.Join(r.dir, "usr")))
	r.server.Close()
	_, err = r.Fresh(t.Context(), item)
	must(t, err)
	if r.read(t, "usr/local/bin/runc") != "runc" {
		t.Error("not placed")
	}
	keep := map[string]bool{}
	for _, name := range r.Keep(item, inventory.Binary{}) {
		keep[name] = true
	}
	must(t, os.WriteFile(filepath.Join(r.Store.Dir(), "blobs/sha256/foreign"), nil, 0o600))
	must(t, os.MkdirAll(filepath.Join(r.Store.Dir(), "ingest/x"), 0o700))
	must(t, r.Store.Sweep(keep))
	must(t, os.RemoveAll(filepath.Join(r.dir, "usr")))
	_, err = r.Fresh(t.Context(), item)
	must(t, err)
	if names, _ := os.ReadDir(r.Store.Dir()); len(names) != 4 {
		t.Errorf("the store holds %v", names)
	}
}

// Programs that a mirror builds as one binary under several names come at the same time, through one partial file.
func TestSameBytesAtOnce(t *testing.T) {
	for range 20 {
		r := newRig(t)
		data := bytes.Repeat([]byte("one binary"), 100_000)
		runc := r.item(t, config.Runc, data)
		var items []Item
		for n := range 4 {
			item := runc
			item.Name, item.SHA256 = fmt.Sprintf("runc%d", n), ocitest.Sum(data)
			items = append(items, item)
		}
		must(t, content.Each(t.Context(), len(items), items, func(ctx context.Context, item Item) error {
			file, err := r.get(ctx, item, item.SHA256)
			if err != nil {
				return err
			}
			return file.Close()
		}))
		if len(r.requests) != 1 {
			t.Errorf("asked for %v, want one request", r.requests)
		}
	}
}

// What the image has is not downloaded: bare programs by digest, archives by what the linker wrote.
func TestInTheImage(t *testing.T) {
	r := newRig(t)
	item := r.item(t, config.Runc, []byte("runc"))
	must(t, os.MkdirAll(filepath.Join(r.dir, "usr/local/bin"), 0o755))
	must(t, os.WriteFile(filepath.Join(r.dir, "usr/local/bin/runc"), []byte("runc"), 0o755))
	have, err := r.Fresh(t.Context(), item)
	must(t, err)
	if len(r.requests) != 1 || have.SHA256 != ocitest.Sum([]byte("runc")) {
		t.Errorf("requests %v, have %+v", r.requests, have)
	}

	// The test itself is a Go program with a module and a version.
	self, err := os.Executable()
	must(t, err)
	info, err := buildinfo.ReadFile(self)
	must(t, err)
	data, err := os.ReadFile(self)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(r.dir, "usr/local/bin/crictl"), data, 0o755))
	found := Item{Name: "crictl", Version: strings.TrimPrefix(info.Main.Version, "v"), Dest: binDir, archive: &archive{required: []string{"crictl"}, module: info.Main.Path}}
	if !strings.HasPrefix(info.Main.Version, "v") {
		found.Version = "(devel)"
		t.Logf("this build has no version: %q", info.Main.Version)
	} else if _, ok := recognise(r.Root, found); !ok {
		t.Error("not recognised")
	}
	for name, change := range map[string]func(*Item){
		"another version": func(i *Item) { i.Version = "9.9.9" },
		"another module":  func(i *Item) { i.archive = &archive{required: i.archive.required, module: "other"} },
		"pinned":          func(i *Item) { i.SHA256 = strings.Repeat("a", 64) },
		"no such program": func(i *Item) { i.archive = &archive{required: []string{"none"}, module: i.archive.module} },
	} {
		item := found
		change(&item)
		if _, ok := recognise(r.Root, item); ok {
			t.Errorf("%s: recognised", name)
		}
	}
}

func TestProbe(t *testing.T) {
	r := newRig(t)
	sources := map[config.Artifact]config.Source{}
	for _, k := range kinds() {
		sources[k.artifact] = config.Source{BaseURL: r.server.URL, Version: "1.0.0"}
		for _, item := range k.items(sources[k.artifact], "amd64") {
			r.files[strings.TrimPrefix(item.URL, r.server.URL)] = []byte("x")
			r.files[strings.TrimPrefix(item.Sums, r.server.URL)] = []byte(ocitest.Sum([]byte("x")))
		}
	}
	delete(r.files, "/v1.0.0/runc.amd64")
	results := Probe(t.Context(), fetch.Client{Tries: 1}, sources, "amd64")
	if len(results) != 7 {
		t.Fatalf("%d results", len(results))
	}
	for _, result := range results {
		if (result.Err != nil) != (result.Item.Name == "runc") {
			t.Errorf("%s: %v", result.Item, result.Err)
		}
	}
}
