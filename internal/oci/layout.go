package oci

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"unbounded/internal/content"
	"unbounded/internal/fetch"
)

// pick returns the one manifest of a layout's index that tag names; without a tag, the only one.
func pick(index []byte, tag string) (ispec.Descriptor, error) {
	var list ispec.Index
	if err := json.Unmarshal(index, &list); err != nil {
		return ispec.Descriptor{}, fmt.Errorf("index.json: %w", err)
	}
	var found []ispec.Descriptor
	tags := map[string]bool{}
	for _, m := range list.Manifests {
		name := m.Annotations[ispec.AnnotationRefName]
		if name != "" {
			tags[name] = true
		}
		if tag == "" || name == tag {
			found = append(found, m)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1 && (tag != "" || len(tags) == 1):
		// One tag with a manifest for each platform is an index.
		return ispec.Descriptor{}, errMany{found}
	case tag != "":
		return ispec.Descriptor{}, fmt.Errorf("has no tag %q", tag)
	}
	return ispec.Descriptor{}, fmt.Errorf("has %d references, want exactly one, or name its tag", len(found))
}

// errMany carries the manifests that share one tag.
type errMany struct{ manifests []ispec.Descriptor }

func (errMany) Error() string { return "has several manifests under one tag" }

// resolveIndex finds the image for linux/arch in a layout's index.json.
func resolveIndex(ctx context.Context, index []byte, tag, arch string, read documents) (Image, error) {
	first, err := pick(index, tag)
	if many, ok := errors.AsType[errMany](err); ok {
		first, err = document{Manifests: many.manifests}.choose(arch)
	}
	if err != nil {
		return Image{}, err
	}
	b, err := blob(first)
	if err != nil {
		return Image{}, err
	}
	body, kind, err := read(ctx, b)
	if err != nil {
		return Image{}, err
	}
	return descend(ctx, body, kind, b.SHA256, arch, read)
}

// layout is a folder on this host, in the form of the OCI image layout.
type layout struct{ ref Reference }

func (l *layout) path(sha string) string { return filepath.Join(l.ref.Dir, "blobs", "sha256", sha) }

// Resolve reads index.json and the manifest.
func (l *layout) Resolve(ctx context.Context, _ *content.Store, arch string) (Image, error) {
	index, err := readSmall(filepath.Join(l.ref.Dir, "index.json"))
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", l.ref, err)
	}
	image, err := resolveIndex(ctx, index, l.ref.Tag, arch, func(_ context.Context, b content.Blob) ([]byte, string, error) {
		body, err := readSmall(l.path(b.SHA256))
		if err != nil {
			return nil, "", err
		}
		if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != b.SHA256 {
			return nil, "", fmt.Errorf("%s is not what its name says", l.path(b.SHA256))
		}
		return body, "", nil
	})
	if err != nil {
		return image, fmt.Errorf("image %s: %w", l.ref, err)
	}
	return image, nil
}

// Store copies a blob.
func (l *layout) Store(ctx context.Context, store *content.Store, b content.Blob) error {
	if store.Has(b) {
		return nil
	}
	file, err := os.Open(l.path(b.SHA256))
	if err != nil {
		return fmt.Errorf("image %s: %w", l.ref, err)
	}
	defer file.Close()
	if err := store.Put(ctx, b, file); err != nil {
		return fmt.Errorf("image %s: %w", l.ref, err)
	}
	return nil
}

// Keep is nothing: manifests are read in place.
func (*layout) Keep() []string { return nil }

func readSmall(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	body, err := io.ReadAll(io.LimitReader(file, maxDocument+1))
	if err == nil && len(body) > maxDocument {
		err = fmt.Errorf("%s has more than %d bytes", path, maxDocument)
	}
	return body, err
}

// archive is a .tar or .tar.gz with one layout in it, at a URL. It is taken apart into
// the store, and a note there says which manifest it held, so that it comes once.
type archive struct {
	ref       Reference
	client    fetch.Client
	manifests []string // what resolving read from the store
}

// key names the archive in the store. Its URL may be signed anew: the query is no part of it.
func (a *archive) key() string {
	sum := sha256.Sum256([]byte(a.ref.String()))
	return "archive-" + hex.EncodeToString(sum[:])
}

// Keep names the note, and the archive while it is not all there.
func (a *archive) Keep() []string {
	return append([]string{a.key() + ".json", a.key(), a.key() + ".tar"}, a.manifests...)
}

// Resolve fetches the archive, unless its blobs are in the store.
func (a *archive) Resolve(ctx context.Context, store *content.Store, arch string) (Image, error) {
	if index := store.Note(a.key() + ".json"); index != "" {
		image, err := a.resolve(ctx, store, []byte(index), arch)
		if missing, _ := store.Missing(image.Blobs()); err == nil && len(missing) == 0 {
			return image, nil
		}
	}
	index, err := a.ingest(ctx, store)
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", a.ref, err)
	}
	image, err := a.resolve(ctx, store, index, arch)
	if err != nil {
		return image, fmt.Errorf("image %s: %w", a.ref, err)
	}
	return image, store.SetNote(a.key()+".json", string(index))
}

func (a *archive) resolve(ctx context.Context, store *content.Store, index []byte, arch string) (Image, error) {
	tagged, err := pick(index, "")
	if many, ok := errors.AsType[errMany](err); ok {
		tagged = many.manifests[0]
	}
	if name := tagged.Annotations[ispec.AnnotationRefName]; !tagForm.MatchString(name) {
		return Image{}, fmt.Errorf("archive must hold exactly one reference with a valid tag: %w", cmp.Or(err, fmt.Errorf("its tag is %q", name)))
	}
	return resolveIndex(ctx, index, "", arch, func(_ context.Context, b content.Blob) ([]byte, string, error) {
		a.manifests = append(a.manifests, b.SHA256)
		body, err := store.Get(b, maxDocument)
		return body, "", err
	})
}

// Store fetches the archive again if the blob is not there any more.
func (a *archive) Store(ctx context.Context, store *content.Store, b content.Blob) error {
	if store.Has(b) {
		return nil
	}
	if _, err := a.ingest(ctx, store); err != nil {
		return fmt.Errorf("image %s: %w", a.ref, err)
	}
	if !store.Has(b) {
		return fmt.Errorf("image %s: blob sha256:%s %w", a.ref, b.SHA256, ErrGone)
	}
	return nil
}

// ingest fetches the archive and puts its blobs into the store. It returns index.json.
func (a *archive) ingest(ctx context.Context, store *content.Store) ([]byte, error) {
	path := store.Partial(a.key() + ".tar")
	want := fetch.Want{URL: a.ref.URL, Size: -1}
	if err := a.client.File(ctx, want, store.Partial(a.key()), path); err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	index, err := takeApart(ctx, file, store)
	return index, errors.Join(err, file.Close(), os.Remove(path))
}

func takeApart(ctx context.Context, r io.Reader, store *content.Store) (index []byte, err error) {
	buffered := bufio.NewReaderSize(r, 1<<20)
	r = buffered
	if magic, _ := buffered.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		if r, err = gzip.NewReader(buffered); err != nil {
			return nil, err
		}
	}
	marked := false
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read archive: %w", err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		name := path.Clean(header.Name)
		switch sha, isBlob := strings.CutPrefix(name, "blobs/sha256/"); {
		case isBlob && digestForm.MatchString("sha256:"+sha):
			if err := store.Put(ctx, content.Blob{SHA256: sha, Size: header.Size}, archive); err != nil {
				return nil, err
			}
		case name == "index.json" && index != nil, name == "oci-layout" && marked:
			return nil, errors.New("archive holds more than one OCI layout")
		case name == "index.json" && header.Size <= maxDocument:
			if index, err = io.ReadAll(archive); err != nil {
				return nil, err
			}
		case name == "oci-layout":
			marked = true
		case path.Base(name) == "oci-layout", path.Base(name) == "index.json":
			return nil, fmt.Errorf("archive holds an OCI layout below its top: %q", name)
		}
	}
	if index == nil || !marked {
		return nil, fmt.Errorf("archive holds no OCI layout: %w", fs.ErrNotExist)
	}
	return index, nil
}
