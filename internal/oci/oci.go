// Package oci finds the image of a machine and brings its blobs into the content store.
//
// An image comes from a registry, from an OCI layout on this host, or from an archive
// of one at a URL. Manifests are verified against their digests, the platform is
// chosen from an index, Docker's media types are taken as what they are in OCI.
// Plain http is spoken only where fetch.PlainAllowed says so.
//
// The package is larger than others because it owns oras and the forms of images: references (reference.go),
// indexes and manifests (manifest.go), and a file for each place that an image comes from.
package oci

import (
	"context"
	"errors"
	"fmt"
	"os"

	"unbounded/internal/content"
	"unbounded/internal/fetch"
)

// Source is where the blobs of one image come from.
type Source interface {
	// Resolve finds the image for linux/arch. It fetches no layers, but from an archive.
	Resolve(ctx context.Context, store *content.Store, arch string) (Image, error)
	// Store brings one blob of the image into the store.
	Store(ctx context.Context, store *content.Store, blob content.Blob) error
	// Keep names what the source has in the store beside the blobs of the image.
	Keep() []string
}

// ErrGone is in the chain when something the manifest names is not there: after a tag has moved, resolve again.
var ErrGone = errors.New("is not there")

// maxDocument is the largest manifest, index or configuration.
const maxDocument = 4 << 20

// Open returns the source of ref. The client's HTTP may be unset: then the one of
// fetch.NewHTTP is used. dockerConfig (may be empty) holds credentials of registries.
func Open(ref Reference, client fetch.Client, dockerConfig []byte) (Source, error) {
	if client.HTTP == nil {
		client.HTTP = fetch.NewHTTP()
	}
	switch ref.Kind {
	case Layout:
		return &layout{ref}, nil
	case Archive:
		return &archive{ref: ref, client: client}, nil
	case Registry:
	}
	return newRegistry(ref, client, dockerConfig)
}

// Credentials reads the docker-style configuration at path; without a path there are none.
func Credentials(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	return os.ReadFile(path)
}

// Probe tells whether the image for linux/arch could be had, without its layers, and
// how many bytes they (or the archive) have; -1 when the server does not say.
func Probe(ctx context.Context, ref Reference, client fetch.Client, dockerConfig []byte, arch string) (int64, error) {
	source, err := Open(ref, client, dockerConfig)
	if err != nil {
		return 0, err
	}
	if a, ok := source.(*archive); ok {
		return a.client.Probe(ctx, a.ref.URL, nil)
	}
	image, err := source.Resolve(ctx, nil, arch)
	return image.Size(), err
}

// documents reads an index or manifest by digest.
type documents func(ctx context.Context, blob content.Blob) (body []byte, mediaType string, err error)

// descend follows an index to the manifest for linux/arch.
func descend(ctx context.Context, body []byte, mediaType, sha, arch string, read documents) (Image, error) {
	const depth = 4
	for range depth {
		d, err := parseDocument(body, mediaType)
		if err != nil {
			return Image{}, err
		}
		if d.Config != nil {
			return d.image(sha, "linux/"+arch)
		}
		next, err := d.choose(arch)
		if err != nil {
			return Image{}, err
		}
		b, err := blob(next)
		if err != nil {
			return Image{}, err
		}
		if b.Size > maxDocument {
			return Image{}, fmt.Errorf("names a manifest of %d bytes, more than %d", b.Size, maxDocument)
		}
		if body, mediaType, err = read(ctx, b); err != nil {
			return Image{}, err
		}
		sha = b.SHA256
	}
	return Image{}, fmt.Errorf("has indexes nested more than %d deep", depth)
}
