package containerd_test

import (
	"path"
	"strings"
	"testing"

	"unbounded/internal/config"
	"unbounded/internal/containerd"
	"unbounded/internal/golden"
	"unbounded/internal/guest"
)

func TestFiles(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, version string
		mirrors       []config.Mirror
	}{
		{"version-1", "1.7.29", nil},
		{"version-2", "2.1.8", []config.Mirror{
			{Host: "docker.io", Server: "https://registry-1.docker.io", Mirror: "http://10.1.2.3:5000", SkipVerify: true},
			{Host: "_default", Mirror: "https://mirror.example.test"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			files := containerd.Files(&config.Config{
				SandboxImage: "registry.example.test/pause:3.10", Mirrors: test.mirrors,
				Downloads: map[config.Artifact]config.Source{config.Containerd: {Version: test.version}},
			})
			for _, f := range files {
				if f.Kind != guest.Regular {
					continue
				}
				name := path.Base(f.Path)
				if name == "hosts.toml" {
					name = path.Base(path.Dir(f.Path)) + ".hosts.toml"
				}
				golden.Check(t, "testdata/"+test.name+"/"+name, string(f.Data))
				// containerd reads mirrors for every pull, everything else when it starts.
				if reads := f.Service == containerd.Service; reads == strings.Contains(f.Path, "certs.d") {
					t.Errorf("%s: a change restarts containerd: %v", f.Path, reads)
				}
			}
		})
	}
}
