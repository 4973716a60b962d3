// Package artifact brings the node's binaries into a tree: kubelet and its kin, containerd, runc, CNI plugins, crictl.
//
// Where they come from is as in the public agent: the projects' releases, a mirror of
// the same layout, or a URL of one's own. A download is verified by the digest that the
// configuration pins, or by the one that its project publishes beside it, before
// anything of it is placed; a program that the image has already is not downloaded.
//
// The package is a little longer than others because it holds the public layout of five projects.
package artifact

import (
	"fmt"
	"net/url"
	"path"
	"strings"

	"unbounded/internal/config"
)

// Item is one download.
type Item struct {
	Name    string
	Version string
	URL     string
	SHA256  string // hex, pinned by the configuration; empty: published at Sums
	Sums    string
	Dest    string // in the tree: the program, or for an archive the folder of its programs

	archive *archive // nil for a bare program
}

// archive says what is taken from a gzip'd tar archive.
type archive struct {
	prefix   string   // of members that are programs
	only     string   // the one program to take; empty: all
	required []string // programs that must be in it
	module   string   // Go module that they are built from
}

const (
	binDir = "/usr/local/bin"
	cniDir = "/opt/cni/bin"
)

// kind describes one set of artifacts: the public layout, and the order of arguments of a URL template.
type kind struct {
	artifact config.Artifact
	names    []string
	base     string
	path     func(version, arch, name string) string
	args     func(version, arch, name string) []string
	sums     func(url string) string
	dest     func(name string) string
	archive  *archive
}

func besides(suffix string) func(string) string {
	return func(text string) string { return edit(text, func(p string) string { return p + suffix }) }
}

// edit changes the path of a URL, and leaves the query of a signed one.
func edit(text string, change func(string) string) string {
	u, err := url.Parse(text)
	if err != nil {
		return change(text)
	}
	u.Path, u.RawPath = change(u.Path), ""
	return u.String()
}

func kinds() []kind {
	return []kind{{
		artifact: config.Kubernetes,
		names:    []string{"kubelet", "kubectl", "kube-proxy"},
		base:     "https://dl.k8s.io",
		path:     func(v, arch, name string) string { return "v" + v + "/bin/linux/" + arch + "/" + name },
		args:     func(v, arch, name string) []string { return []string{v, arch, name} },
		sums:     besides(".sha256"),
		dest:     func(name string) string { return path.Join(binDir, name) },
	}, {
		artifact: config.Containerd,
		names:    []string{"containerd"},
		base:     "https://github.com/containerd/containerd/releases/download",
		path:     func(v, arch, _ string) string { return "v" + v + "/containerd-" + v + "-linux-" + arch + ".tar.gz" },
		args:     func(v, arch, _ string) []string { return []string{v, v, arch} },
		sums:     besides(".sha256sum"),
		dest:     func(string) string { return binDir },
		archive: &archive{
			prefix: "bin/", module: "github.com/containerd/containerd",
			required: []string{"containerd", "containerd-shim-runc-v2"},
		},
	}, {
		artifact: config.Runc,
		names:    []string{"runc"},
		base:     "https://github.com/opencontainers/runc/releases/download",
		path:     func(v, arch, _ string) string { return "v" + v + "/runc." + arch },
		args:     func(v, arch, _ string) []string { return []string{v, arch} },
		sums: func(text string) string {
			return edit(text, func(p string) string { return path.Join(path.Dir(p), "runc.sha256sum") })
		},
		dest: func(string) string { return path.Join(binDir, "runc") },
	}, {
		artifact: config.CNI,
		names:    []string{"cni-plugins"},
		base:     "https://github.com/containernetworking/plugins/releases/download",
		path:     func(v, arch, _ string) string { return "v" + v + "/cni-plugins-linux-" + arch + "-v" + v + ".tgz" },
		args:     func(v, arch, _ string) []string { return []string{v, arch, v} },
		sums:     besides(".sha256"),
		dest:     func(string) string { return cniDir },
		archive: &archive{
			module:   "github.com/containernetworking/plugins",
			required: []string{"bridge", "host-local", "loopback", "portmap"},
		},
	}, {
		artifact: config.Crictl,
		names:    []string{"crictl"},
		base:     "https://github.com/kubernetes-sigs/cri-tools/releases/download",
		path:     func(v, arch, _ string) string { return "v" + v + "/crictl-v" + v + "-linux-" + arch + ".tar.gz" },
		args:     func(v, arch, _ string) []string { return []string{v, v, "linux", arch} },
		sums:     besides(".sha256"),
		dest:     func(string) string { return binDir },
		archive:  &archive{only: "crictl", required: []string{"crictl"}, module: "sigs.k8s.io/cri-tools"},
	}}
}

// Plan lists the downloads for a node of arch, in the order of kinds.
func Plan(downloads map[config.Artifact]config.Source, arch string) []Item {
	var items []Item
	for _, k := range kinds() {
		items = append(items, k.items(downloads[k.artifact], arch)...)
	}
	return items
}

func (k kind) items(source config.Source, arch string) []Item {
	base := source.BaseURL
	if base == "" {
		base = k.base
	}
	var items []Item
	for _, name := range k.names {
		item := Item{
			Name: name, Version: source.Version, SHA256: source.SHA256,
			Dest: k.dest(name), archive: k.archive,
			URL: strings.TrimRight(base, "/") + "/" + k.path(source.Version, arch, name),
		}
		if source.URL != "" {
			item.URL = expand(source.URL, k.args(source.Version, arch, name))
		}
		if item.SHA256 == "" {
			item.Sums = k.sums(item.URL)
		}
		items = append(items, item)
	}
	return items
}

// expand puts args into the %s of a template, one after the other; what is left over is not used.
func expand(template string, args []string) string {
	var out strings.Builder
	for i := 0; i < len(template); i++ {
		if template[i] == '%' && i+1 < len(template) {
			switch i++; {
			case template[i] == '%':
				out.WriteByte('%')
				continue
			case template[i] == 's' && len(args) > 0:
				out.WriteString(args[0])
				args = args[1:]
				continue
			}
			out.WriteByte('%')
		}
		out.WriteByte(template[i])
	}
	return out.String()
}

// String names the item in messages.
func (i Item) String() string { return fmt.Sprintf("%s %s", i.Name, i.Version) }

// Folder is where in the tree the item's programs are.
func (i Item) Folder() string {
	if i.archive == nil {
		return path.Dir(i.Dest)
	}
	return i.Dest
}
