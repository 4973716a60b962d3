package serve

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// request is what a registry is asked for: a name, the kind, and a tag or digest.
var request = regexp.MustCompile(`^/v2/(.+)/(manifests|blobs)/([^/]+)$`)

// Layout serves an OCI layout by the distribution API, read-only, under any name.
func Layout(dir string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
		if r.URL.Path == "/v2/" {
			return
		}
		parts := request.FindStringSubmatch(r.URL.Path)
		if parts == nil {
			refuse(w, "UNSUPPORTED", "not a request of the distribution API")
			return
		}
		kind, reference := parts[2], parts[3]
		if kind == "manifests" {
			serveManifest(w, r, dir, reference)
		} else {
			serveBlob(w, r, dir, reference, "application/octet-stream")
		}
	})
}

// descriptor is an entry of an index, as far as it matters here.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
}

func serveManifest(w http.ResponseWriter, r *http.Request, dir, reference string) {
	found, err := resolve(dir, reference)
	if err != nil {
		refuse(w, "MANIFEST_UNKNOWN", err.Error())
		return
	}
	serveBlob(w, r, dir, found.Digest, found.MediaType)
}

// resolve finds a tag or digest. A digest may also be one that an index names.
func resolve(dir, reference string) (descriptor, error) {
	var index struct {
		Manifests []descriptor `json:"manifests"`
	}
	content, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err == nil {
		err = json.Unmarshal(content, &index)
	}
	if err != nil {
		return descriptor{}, err
	}
	for _, manifest := range index.Manifests {
		if reference == manifest.Digest || reference == manifest.Annotations["org.opencontainers.image.ref.name"] {
			return manifest, nil
		}
	}
	return byDigest(dir, reference)
}

// byDigest describes a manifest that only another one names.
func byDigest(dir, digest string) (descriptor, error) {
	path, err := blobPath(dir, digest)
	if err != nil {
		return descriptor{}, err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return descriptor{}, os.ErrNotExist
	}
	found := descriptor{MediaType: "application/vnd.oci.image.manifest.v1+json"}
	err = json.Unmarshal(content, &found)
	found.Digest = digest
	return found, err
}

func blobPath(dir, digest string) (string, error) {
	hex, found := strings.CutPrefix(digest, "sha256:")
	if !found || strings.Trim(hex, "0123456789abcdef") != "" {
		return "", os.ErrNotExist
	}
	return filepath.Join(dir, "blobs/sha256", hex), nil
}

// serveBlob sends a blob, or the range of it that is asked for.
func serveBlob(w http.ResponseWriter, r *http.Request, dir, digest, mediaType string) {
	path, err := blobPath(dir, digest)
	if err != nil {
		refuse(w, "BLOB_UNKNOWN", digest)
		return
	}
	file, err := os.Open(path)
	if err != nil {
		refuse(w, "BLOB_UNKNOWN", digest)
		return
	}
	defer file.Close()
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("ETag", `"`+digest+`"`)
	http.ServeContent(w, r, "", time.Time{}, file)
}

// refuse answers 404 in the form of the distribution API.
func refuse(w http.ResponseWriter, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotFound)
	answer := map[string]any{"errors": []any{map[string]string{"code": code, "message": message}}}
	_ = json.NewEncoder(w).Encode(answer)
}
