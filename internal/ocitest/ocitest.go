// Package ocitest makes images and serves them, well or badly, for tests of what pulls and unpacks them.
package ocitest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Sum is the SHA-256 of data, hex.
func Sum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Entry is one entry of an archive.
type Entry struct {
	tar.Header
	Body string
}

// File is a regular file.
func File(name, body string, mode int64) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, ModTime: time.Unix(1_700_000_000, 123_456_789)}, body}
}

// Dir is a folder.
func Dir(name string, mode int64) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode, ModTime: time.Unix(1_700_000_000, 0)}, ""}
}

// Link is a symbolic link (tar.TypeSymlink) or hard link (tar.TypeLink).
func Link(kind byte, name, target string) Entry {
	return Entry{tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777, ModTime: time.Unix(1_700_000_000, 0)}, ""}
}

// Tar is an archive of entries.
func Tar(tb testing.TB, entries ...Entry) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		header := e.Header
		if header.Size == 0 {
			header.Size = int64(len(e.Body))
		}
		if header.Format == 0 {
			header.Format = tar.FormatPAX
		}
		if err := w.WriteHeader(&header); err != nil {
			tb.Fatalf("entry %q: %v", e.Name, err)
		}
		if _, err := w.Write([]byte(e.Body)); err != nil {
			tb.Fatalf("entry %q: %v", e.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// Gzip compresses.
func Gzip(tb testing.TB, data []byte) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// Zstd compresses.
func Zstd(tb testing.TB, data []byte) []byte {
	tb.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		tb.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

// Layer is a stored layer and its plain archive.
type Layer struct {
	MediaType   string
	Stored, Raw []byte
}

// GzipLayer is the usual layer of OCI.
func GzipLayer(tb testing.TB, entries ...Entry) Layer {
	tb.Helper()
	raw := Tar(tb, entries...)
	return Layer{ispec.MediaTypeImageLayerGzip, Gzip(tb, raw), raw}
}

// Image is an image in parts that tests may spoil before they serve it.
type Image struct {
	Manifest  []byte
	MediaType string
	Blobs     map[string][]byte // configuration and layers by their SHA-256
	Layers    []ispec.Descriptor
	Config    ispec.Descriptor
}

// Descriptor is the descriptor of the manifest.
func (i Image) Descriptor() ispec.Descriptor {
	return descriptor(i.MediaType, i.Manifest)
}

func descriptor(mediaType string, data []byte) ispec.Descriptor {
	return ispec.Descriptor{MediaType: mediaType, Digest: digest.NewDigestFromEncoded(digest.SHA256, Sum(data)), Size: int64(len(data))}
}

// New makes an image for linux/arch of layers.
func New(tb testing.TB, arch string, layers ...Layer) Image {
	tb.Helper()
	config := ispec.Image{Platform: ispec.Platform{OS: "linux", Architecture: arch}, RootFS: ispec.RootFS{Type: "layers"}}
	image := Image{MediaType: ispec.MediaTypeImageManifest, Blobs: map[string][]byte{}}
	for _, layer := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.NewDigestFromEncoded(digest.SHA256, Sum(layer.Raw)))
		image.Blobs[Sum(layer.Stored)] = layer.Stored
		image.Layers = append(image.Layers, descriptor(layer.MediaType, layer.Stored))
	}
	data := JSON(tb, config)
	image.Blobs[Sum(data)] = data
	image.Config = descriptor(ispec.MediaTypeImageConfig, data)
	image.Manifest = JSON(tb, ispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: image.MediaType, Config: image.Config, Layers: image.Layers,
	})
	return image
}

// JSON encodes.
func JSON(tb testing.TB, v any) []byte {
	tb.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// Index is an index of manifests.
func Index(tb testing.TB, manifests ...ispec.Descriptor) []byte {
	tb.Helper()
	return JSON(tb, ispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ispec.MediaTypeImageIndex, Manifests: manifests})
}

// Document is a manifest or index.
type Document struct {
	MediaType string
	Body      []byte
}

// Registry is a registry at an httptest server: plain http on a loopback address.
type Registry struct {
	*httptest.Server
	// Before answers a request itself when it returns true. It may be changed between requests by its owner only.
	Before func(w http.ResponseWriter, r *http.Request) bool

	mu       sync.Mutex
	tags     map[string]Document // repo:tag and repo@sha256:…
	blobs    map[string][]byte
	requests []string
}

// Serve starts a registry that ends with the test.
func Serve(tb testing.TB) *Registry {
	tb.Helper()
	r := &Registry{tags: map[string]Document{}, blobs: map[string][]byte{}}
	r.Server = httptest.NewServer(r)
	tb.Cleanup(r.Close)
	return r
}

// Host is the registry's part of a reference.
func (r *Registry) Host() string { return strings.TrimPrefix(r.URL, "http://") }

// Push makes image known as repo:tag and returns its reference.
func (r *Registry) Push(repo, tag string, image Image) string {
	r.PushDocument(repo, tag, Document{image.MediaType, image.Manifest})
	r.mu.Lock()
	defer r.mu.Unlock()
	for sum, data := range image.Blobs {
		r.blobs[sum] = data
	}
	return fmt.Sprintf("%s/%s:%s", r.Host(), repo, tag)
}

// PushDocument makes a manifest or index known as repo:tag and by its digest.
func (r *Registry) PushDocument(repo, tag string, d Document) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags[repo+":"+tag] = d
	r.tags[repo+":sha256:"+Sum(d.Body)] = d
}

// Remove forgets a blob.
func (r *Registry) Remove(sum string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.blobs, sum)
}

// Requests are the requests so far, as "GET /path".
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.requests...)
}

// ServeHTTP is the registry's pull half.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.requests = append(r.requests, req.Method+" "+req.URL.Path)
	r.mu.Unlock()
	if r.Before != nil && r.Before(w, req) {
		return
	}
	path := strings.TrimPrefix(req.URL.Path, "/v2/")
	if repo, what, found := strings.Cut(path, "/manifests/"); found {
		r.mu.Lock()
		d, known := r.tags[repo+":"+what]
		r.mu.Unlock()
		if !known {
			http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`, http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", d.MediaType)
		w.Header().Set("Docker-Content-Digest", "sha256:"+Sum(d.Body))
		_, _ = w.Write(d.Body)
		return
	}
	_, sum, _ := strings.Cut(path, "/blobs/sha256:")
	r.mu.Lock()
	data, known := r.blobs[sum]
	r.mu.Unlock()
	if !known {
		http.Error(w, `{"errors":[{"code":"BLOB_UNKNOWN"}]}`, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(data))
}
