package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"unbounded/internal/content"
)

// Layer is one layer of an image.
type Layer struct {
	content.Blob        // as stored, compressed or not
	DiffID       string // sha256 (hex) of the plain archive
}

// Image is a resolved image: the manifest for one platform, and what it consists of.
type Image struct {
	Manifest string // sha256 (hex)
	Platform string // linux/amd64
	Config   content.Blob
	Layers   []Layer // DiffID only after Configure
}

// Size is how many bytes the layers have, as stored.
func (i Image) Size() int64 {
	var n int64
	for _, layer := range i.Layers {
		n += layer.Size
	}
	return n
}

// Blobs are the configuration and the layers.
func (i Image) Blobs() []content.Blob {
	blobs := []content.Blob{i.Config}
	for _, layer := range i.Layers {
		blobs = append(blobs, layer.Blob)
	}
	return blobs
}

// Media types of Docker, and what they are in OCI.
const (
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerSchema1  = "application/vnd.docker.distribution.manifest.v1"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	dockerLayer    = "application/vnd.docker.image.rootfs.diff.tar"
	dockerForeign  = "application/vnd.docker.image.rootfs.foreign.diff.tar"
)

// accepted is the Accept header of a request for a manifest.
func accepted() []string {
	return []string{ispec.MediaTypeImageIndex, ispec.MediaTypeImageManifest, dockerList, dockerManifest}
}

// isLayer tells whether a media type is an archive that can be unpacked. How it is
// compressed is seen from its first bytes, so that a wrong label does no harm.
func isLayer(mediaType string) bool {
	base := strings.TrimSuffix(strings.TrimSuffix(mediaType, "+gzip"), "+zstd")
	base = strings.TrimSuffix(strings.TrimSuffix(base, ".gzip"), ".zstd")
	switch base {
	case ispec.MediaTypeImageLayer, "application/vnd.oci.image.layer.nondistributable.v1.tar", dockerLayer, dockerForeign:
		return true
	}
	return false
}

// document is an index or a manifest; which one it is shows in its fields.
type document struct {
	SchemaVersion int                `json:"schemaVersion"`
	MediaType     string             `json:"mediaType"`
	Manifests     []ispec.Descriptor `json:"manifests"`
	Config        *ispec.Descriptor  `json:"config"`
	Layers        []ispec.Descriptor `json:"layers"`
}

// parseDocument reads an index or manifest that came with a media type ("" when unknown).
func parseDocument(body []byte, contentType string) (document, error) {
	var d document
	kind, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		kind = contentType
	}
	switch {
	case strings.HasPrefix(kind, dockerSchema1):
		return d, errors.New("is in Docker's old format, schema 1; push the image again with a current tool")
	case kind == "text/html":
		return d, fmt.Errorf("is %s, not a manifest: is a captive portal or a proxy answering?", kind)
	}
	if err := json.Unmarshal(body, &d); err != nil {
		return d, fmt.Errorf("is not a manifest: %w", err)
	}
	switch isIndex := d.Manifests != nil; {
	case d.SchemaVersion != 2:
		return d, fmt.Errorf("is not a manifest: schemaVersion is %d, want 2", d.SchemaVersion)
	case isIndex && (d.Config != nil || d.Layers != nil):
		return d, errors.New("is an index and a manifest at once")
	case !isIndex && d.Config == nil:
		return d, errors.New("is neither an index nor a manifest")
	}
	return d, nil
}

// image turns a manifest into an Image.
func (d document) image(sha, platform string) (Image, error) {
	image := Image{Manifest: sha, Platform: platform}
	if kind := d.Config.MediaType; kind != ispec.MediaTypeImageConfig && kind != dockerConfig {
		return image, fmt.Errorf("is not an image: its configuration is %q", kind)
	}
	config, err := blob(*d.Config)
	if err != nil {
		return image, err
	}
	image.Config = config
	if len(d.Layers) == 0 {
		return image, errors.New("has no layers")
	}
	for _, layer := range d.Layers {
		if !isLayer(layer.MediaType) {
			return image, fmt.Errorf("has a layer of unknown type %q", layer.MediaType)
		}
		b, err := blob(layer)
		if err != nil {
			return image, err
		}
		image.Layers = append(image.Layers, Layer{Blob: b})
	}
	return image, nil
}

func blob(d ispec.Descriptor) (content.Blob, error) {
	if err := d.Digest.Validate(); err != nil || d.Digest.Algorithm() != digest.SHA256 {
		return content.Blob{}, fmt.Errorf("names %q, which is no sha256 digest", d.Digest)
	}
	if d.Size < 0 {
		return content.Blob{}, fmt.Errorf("names %s with size %d", d.Digest, d.Size)
	}
	return content.Blob{SHA256: d.Digest.Encoded(), Size: d.Size}, nil
}

// choose picks the manifest for linux/arch from an index: the plain architecture before a variant of it.
func (d document) choose(arch string) (ispec.Descriptor, error) {
	var names []string
	best, rank := ispec.Descriptor{}, 0
	for _, m := range d.Manifests {
		if m.Platform == nil {
			if len(d.Manifests) == 1 {
				return m, nil // what its configuration says is checked later
			}
			continue
		}
		if m.Platform.OS != "unknown" {
			names = append(names, strings.TrimSuffix(m.Platform.OS+"/"+m.Platform.Architecture+"/"+m.Platform.Variant, "/"))
		}
		if m.Platform.OS != "linux" || m.Platform.Architecture != arch {
			continue
		}
		if r := variantRank(arch, m.Platform.Variant); r > rank {
			best, rank = m, r
		}
	}
	if rank == 0 {
		return best, fmt.Errorf("has nothing for linux/%s, only %s", arch, strings.Join(names, ", "))
	}
	return best, nil
}

// variantRank is 0 for what this host may be unable to run.
func variantRank(arch, variant string) int {
	switch {
	case variant == "":
		return 3
	case arch == "arm64" && variant == "v8", arch == "amd64" && variant == "v1":
		return 2
	}
	return 0
}

// Configure reads the image's configuration, checks its platform, and fills in the DiffIDs.
func (i *Image) Configure(config []byte) error {
	var c ispec.Image
	if err := json.Unmarshal(config, &c); err != nil {
		return fmt.Errorf("read image configuration sha256:%s: %w", i.Config.SHA256, err)
	}
	have := c.OS + "/" + c.Architecture
	switch {
	case (c.OS != "" || c.Architecture != "") && have != i.Platform:
		return fmt.Errorf("image is for %s, this host is %s", have, i.Platform)
	case c.RootFS.Type != "" && c.RootFS.Type != "layers":
		return fmt.Errorf("image configuration: rootfs.type is %q, want layers", c.RootFS.Type)
	case len(c.RootFS.DiffIDs) != len(i.Layers):
		return fmt.Errorf("image configuration: %d diff_ids for %d layers", len(c.RootFS.DiffIDs), len(i.Layers))
	}
	for n, id := range c.RootFS.DiffIDs {
		if err := id.Validate(); err != nil || id.Algorithm() != digest.SHA256 {
			return fmt.Errorf("image configuration: diff_id %q is no sha256 digest", id)
		}
		i.Layers[n].DiffID = id.Encoded()
	}
	return nil
}
