//go:build host || cluster

package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"unbounded/internal/paths"
	"unbounded/tests/host"
	"unbounded/tests/serve"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

const (
	script  = "/root/install.sh"
	address = host.OutsideIP + ":8080"
	slots   = "opt/unbounded/slots/blue/"
)

// archive is a tar of the product, as make release makes it, and served beside a host.
type archive struct {
	name   string
	data   []byte
	sha256 string
}

// pack makes a release of the product; change may give a file other content, nil takes it out.
func pack(t *testing.T, name string, change func(path string, content []byte) []byte) archive {
	t.Helper()
	product, err := host.Product()
	if err != nil {
		t.Fatal(err)
	}
	var data bytes.Buffer
	zip, err := gzip.NewWriterLevel(&data, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	to := tar.NewWriter(zip)
	for _, top := range []string{"opt", "etc", "usr"} {
		err := filepath.WalkDir(filepath.Join(product, top), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return add(to, path, strings.TrimPrefix(path, product+"/"), entry, change)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return seal(name, data.Bytes())
}

// files makes a tar of files with these names.
func files(name string, paths ...string) archive {
	var data bytes.Buffer
	zip := gzip.NewWriter(&data)
	to := tar.NewWriter(zip)
	for _, path := range paths { // a buffer takes everything
		_ = to.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Typeflag: tar.TypeReg})
	}
	_ = to.Close()
	_ = zip.Close()
	return seal(name, data.Bytes())
}

func seal(name string, data []byte) archive {
	sum := sha256.Sum256(data)
	return archive{name, data, hex.EncodeToString(sum[:])}
}

func add(to *tar.Writer, path, name string, entry fs.DirEntry, change func(string, []byte) []byte) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name = name
	if info.IsDir() {
		header.Name += "/"
	}
	var content []byte
	if info.Mode().IsRegular() {
		if content, err = os.ReadFile(path); err != nil {
			return err
		}
		if content = change(name, content); content == nil {
			return nil
		}
		header.Size = int64(len(content))
	}
	if err := to.WriteHeader(header); err != nil {
		return err
	}
	_, err = to.Write(content)
	return err
}

// kept are the programs that small does not replace.
var kept = []string{"unbounded-admission", "unbounded-boot", "unboundedctl"}

// small replaces the programs of stages by ones that have nothing to do: the bootstrap comes to its end in a second.
func small(version string) func(string, []byte) []byte {
	return func(path string, content []byte) []byte {
		name, program := strings.CutPrefix(path, slots)
		switch {
		case program && slices.Contains(kept, name):
			return append(slices.Clone(content), version...) // behind what ELF describes
		case program:
			return []byte("#!/bin/sh\n# " + version + "\nexit 0\n")
		case strings.HasSuffix(path, "/unbounded-network.service"):
			return append(slices.Clone(content), "# "+version+"\n"...)
		}
		return content
	}
}

// scene is a host, and releases beside it.
type scene struct {
	*host.Host

	server *serve.Server
}

func configuration(name string) string {
	return `{"MachineName":"` + name + `","Cluster":{"Version":"v1.37.2"},"Kubelet":{"ApiServer":"https://api.test:6443",` +
		`"Auth":{"BootstrapToken":"abcdef.0123456789abcdef"}},"OCIImage":"r.test/node:1"}`
}

// bare boots a host without the product and serves the releases to it.
func bare(t *testing.T, options host.Options, releases ...archive) scene {
	t.Helper()
	text, err := os.ReadFile("../../scripts/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	options.Bare = true
	options.Overlay = map[string]host.File{
		script:              {Content: string(text)},
		"/root/config.json": {Content: configuration("m1"), Mode: 0o600},
		"/root/other.json":  {Content: configuration("m2"), Mode: 0o600},
	}
	h := host.Boot(t, options)
	return scene{h, offer(t, h, releases...)}
}

func offer(t *testing.T, h *host.Host, releases ...archive) *serve.Server {
	t.Helper()
	mux := http.NewServeMux()
	for _, r := range releases {
		mux.HandleFunc("/"+r.name, func(w http.ResponseWriter, request *http.Request) {
			http.ServeContent(w, request, r.name, info(t).ModTime(), bytes.NewReader(r.data))
		})
	}
	return serve.Start(t, h, address, mux)
}

func info(t *testing.T) fs.FileInfo {
	t.Helper()
	info, err := os.Stat("../../scripts/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// line is the command line that installs r. The URL has a signature, as those of cloud stores have.
func line(r archive, options string) string {
	return "sh " + script + " --url 'http://" + address + "/" + r.name + "?sig=SIGNATURE' --sha256 " + r.sha256 + " --config /root/config.json " + options
}

// install runs a command line and holds it to a status and to what it says. No secret is in that, nor anything left behind.
func (s scene) install(t *testing.T, line string, status int, says ...string) string {
	t.Helper()
	run := s.MustRun(t, "ls -A /run")
	got := s.Run(t, line)
	said := got.Out + got.Err
	if got.Code != status {
		t.Fatalf("%s = %d, want %d\n%s", line, got.Code, status, said)
	}
	for _, text := range says {
		if !strings.Contains(said, text) {
			t.Errorf("%s does not say %q:\n%s", line, text, said)
		}
	}
	for _, secret := range []string{"0123456789abcdef", "SIGNATURE"} {
		if strings.Contains(strings.ReplaceAll(said, line, ""), secret) {
			t.Errorf("%s shows a secret:\n%s", line, said)
		}
	}
	if status != 0 {
		if after := s.MustRun(t, "ls -A /run"); after != run {
			t.Errorf("/run had\n%sand has\n%s", run, after)
		}
	}
	s.tidy(t)
	return said
}

// tidy holds the host to have no stage and no temporary file.
func (s scene) tidy(t *testing.T) {
	t.Helper()
	left := s.MustRun(t, `ls -d /var/lib/unbounded/install.* 2>/dev/null; find /opt /etc /usr/local /var/lib/unbounded -name '*unbounded-tmp*'`+
		`; find /run /tmp /var/tmp -name '*install.*' ! -name unbounded-agent-install.lock`)
	if left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// files are those that an installation is made of, with times; the rest of the host is not to change at all.
func (s scene) files(t *testing.T) host.Tree {
	t.Helper()
	return s.Tree(t, host.TreeOptions{Paths: []string{"/opt", "/etc", "/usr", "/root", "/var/lib"}, Running: true, Exclude: host.Noise})
}

// runs is the version that the link leads to, of all its programs; "" if there is none.
func (s scene) runs(t *testing.T, link string, versions ...string) string {
	t.Helper()
	folder := paths.DefaultRoot + "/" + link
	if s.Run(t, "test -e "+folder).Code != 0 {
		return ""
	}
	for _, version := range versions {
		// The version is in the last line of each program.
		if s.Run(t, "cd "+folder+" && for p in *; do test -x $p && tail -c 64 $p | grep -aq "+version+" || exit 1; done").Code == 0 {
			return version
		}
	}
	t.Errorf("%s leads to a mixture, or to nothing of ours:\n%s", folder, s.MustRun(t, "ls -l "+paths.DefaultRoot+"/ "+folder+"/"))
	return "?"
}
