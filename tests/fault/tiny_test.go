//go:build host || fault

package fault

import (
	"net/http"
	"path/filepath"
	"runtime"
	"testing"

	"unbounded/internal/ocitest"
	"unbounded/tests/host"
	"unbounded/tests/serve"
)

// tinyImage is the reference of the image that serveTiny serves.
const tinyImage = host.OutsideIP + ":5000/node:v1"

const (
	kubeVersion, containerdVersion, runcVersion, cniVersion, crictlVersion = "1.37.2", "2.1.8", "1.5.0", "1.5.1", "1.34.0"
	mirrorURL                                                              = "http://" + serve.MirrorAddress
)

func tinyDownloads() map[string]any {
	from := func(folder, version string) map[string]any {
		return map[string]any{"BaseURL": mirrorURL + "/" + folder, "Version": version}
	}
	return map[string]any{
		"Kubernetes": map[string]any{"BaseURL": mirrorURL + "/k"},
		"Containerd": from("c", containerdVersion), "Runc": from("r", runcVersion),
		"CNI": from("n", cniVersion), "Crictl": from("t", crictlVersion),
	}
}

// serveTiny serves an image of a few files and programs of a few bytes.
func serveTiny(t *testing.T, s *scene) {
	t.Helper()
	registry := ocitest.Serve(t)
	registry.Push("node", "v1", ocitest.New(t, runtime.GOARCH,
		ocitest.GzipLayer(t,
			ocitest.Dir("etc/", 0o755), ocitest.File("etc/os-release", "ID=test\n", 0o644), ocitest.Dir("usr/", 0o755),
			ocitest.Dir("usr/local/", 0o755), ocitest.Dir("usr/local/bin/", 0o755), ocitest.Dir("var/", 0o755), ocitest.Dir("opt/", 0o755),
			ocitest.File("usr/su", "setuid", 0o4755), ocitest.Link('2', "lib", "usr/lib"), ocitest.File("etc/gone", "x", 0o644)),
		ocitest.GzipLayer(t, ocitest.File("etc/motd", "hello", 0o600), ocitest.File("etc/.wh.gone", "", 0)),
	))
	serve.Start(t, s.Host, serve.RegistryAddress, registry)
	files := tinyMirror(t)
	serve.Start(t, s.Host, serve.MirrorAddress, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, there := files[r.URL.Path]
		if !there {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}))
}

// tinyMirror are node programs in the public layout, by path.
func tinyMirror(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	add := func(path, sums string, data []byte) {
		files[path] = data
		files[sums] = []byte(ocitest.Sum(data) + "  " + filepath.Base(path) + "\n")
	}
	program := func(name string) ocitest.Entry { return ocitest.File(name, "program "+name, 0o755) }
	bundle := func(names ...string) []byte {
		var entries []ocitest.Entry
		for _, name := range names {
			entries = append(entries, program(name))
		}
		return ocitest.Gzip(t, ocitest.Tar(t, entries...))
	}
	arch := runtime.GOARCH
	for _, name := range []string{"kubelet", "kubectl", "kube-proxy"} {
		path := "/k/v" + kubeVersion + "/bin/linux/" + arch + "/" + name
		add(path, path+".sha256", []byte("program "+name))
	}
	path := "/c/v" + containerdVersion + "/containerd-" + containerdVersion + "-linux-" + arch + ".tar.gz"
	add(path, path+".sha256sum", bundle("bin/containerd", "bin/containerd-shim-runc-v2", "bin/ctr"))
	add("/r/v"+runcVersion+"/runc."+arch, "/r/v"+runcVersion+"/runc.sha256sum", []byte("program runc"))
	path = "/n/v" + cniVersion + "/cni-plugins-linux-" + arch + "-v" + cniVersion + ".tgz"
	add(path, path+".sha256", bundle("./bridge", "./host-local", "./loopback", "./portmap"))
	path = "/t/v" + crictlVersion + "/crictl-v" + crictlVersion + "-linux-" + arch + ".tar.gz"
	add(path, path+".sha256", bundle("crictl"))
	return files
}
