package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"unbounded/internal/content"
	"unbounded/internal/fetch"
)

type registry struct {
	ref    Reference
	host   string // that is asked
	client fetch.Client
}

func newRegistry(ref Reference, client fetch.Client, dockerConfig []byte) (*registry, error) {
	r := &registry{ref: ref, host: ref.Host, client: client}
	if r.host == "docker.io" {
		r.host = "registry-1.docker.io"
	}
	inner, ok := client.HTTP.(*http.Client)
	if !ok {
		return nil, errors.New("registry needs an *http.Client")
	}
	login := &auth.Client{Client: inner, Cache: auth.NewCache()}
	if len(dockerConfig) > 0 {
		store, err := credentials.NewMemoryStoreFromDockerConfig(dockerConfig)
		if err != nil {
			return nil, errors.New("registry credentials are not a docker-style configuration file with auths")
		}
		login.Credential = credentials.Credential(store)
	}
	r.client.HTTP = authenticated{login}
	return r, nil
}

// authenticated says of each failure to log in whether trying again can help.
type authenticated struct{ *auth.Client }

func (a authenticated) Do(req *http.Request) (*http.Response, error) {
	resp, err := a.Client.Do(req)
	if response, ok := errors.AsType[*errcode.ErrorResponse](err); ok {
		return nil, fmt.Errorf("get a token from %s: %w", response.URL.Host, &fetch.StatusError{Code: response.StatusCode})
	}
	if errors.Is(err, auth.ErrBasicCredentialNotFound) {
		return nil, &fetch.StatusError{Code: http.StatusUnauthorized}
	}
	return resp, err
}

func (r *registry) address(kind, what string) string {
	scheme := "https"
	if fetch.PlainAllowed(r.host) {
		scheme = "http"
	}
	return scheme + "://" + r.host + "/v2/" + r.ref.Repo + "/" + kind + "/" + what
}

// scoped names the scope beforehand, so that one token serves all requests.
func (r *registry) scoped(ctx context.Context) context.Context {
	return auth.WithScopesForHost(ctx, r.host, auth.ScopeRepository(r.ref.Repo, auth.ActionPull))
}

// Resolve asks by tag once; everything after that is by digest, so that a tag that
// moves meanwhile cannot mix two images.
func (r *registry) Resolve(ctx context.Context, _ *content.Store, arch string) (Image, error) {
	what := r.ref.Tag
	if r.ref.SHA256 != "" {
		what = "sha256:" + r.ref.SHA256
	}
	image, err := r.resolve(r.scoped(ctx), what, arch)
	if err != nil {
		return image, fmt.Errorf("image %s: %w", r.ref, r.explain(err))
	}
	return image, nil
}

func (r *registry) resolve(ctx context.Context, what, arch string) (Image, error) {
	body, kind, sha, err := r.manifest(ctx, what)
	if err != nil {
		return Image{}, err
	}
	return descend(ctx, body, kind, sha, arch, func(ctx context.Context, b content.Blob) ([]byte, string, error) {
		body, kind, _, err := r.manifest(ctx, "sha256:"+b.SHA256)
		if err == nil && int64(len(body)) != b.Size {
			err = fmt.Errorf("manifest sha256:%s has %d bytes, its index says %d", b.SHA256, len(body), b.Size)
		}
		return body, kind, err
	})
}

// manifest gets an index or manifest by tag or digest, and its digest.
func (r *registry) manifest(ctx context.Context, what string) (body []byte, kind, sha string, err error) {
	doc, err := r.client.Bytes(ctx, r.address("manifests", what), http.Header{"Accept": accepted()}, maxDocument)
	if err != nil {
		return nil, "", "", err
	}
	sum := sha256.Sum256(doc.Body)
	sha = hex.EncodeToString(sum[:])
	kind = doc.Header.Get("Content-Type")
	if strings.HasPrefix(kind, "text/html") {
		_, err := parseDocument(doc.Body, kind)
		return nil, kind, sha, err
	}
	want, pinned := strings.CutPrefix(what, "sha256:")
	if !pinned {
		want = strings.TrimPrefix(doc.Header.Get("Docker-Content-Digest"), "sha256:")
	}
	if len(want) == len(sha) && want != sha {
		return nil, kind, sha, fmt.Errorf("manifest has digest sha256:%s, want sha256:%s", sha, want)
	}
	return doc.Body, kind, sha, nil
}

// Store fetches a blob, going on from what is there of it.
func (r *registry) Store(ctx context.Context, store *content.Store, b content.Blob) error {
	if store.Has(b) {
		return nil
	}
	defer store.Claim(b.SHA256)()
	if store.Has(b) { // a download of a binary with the same bytes was faster
		return nil
	}
	name := "blob sha256:" + b.SHA256
	err := r.client.File(r.scoped(ctx), fetch.Want{
		Name: name + " from " + r.ref.Host,
		URL:  r.address("blobs", "sha256:"+b.SHA256), Size: b.Size, SHA256: b.SHA256,
	}, store.Partial(b.SHA256), store.Path(b.SHA256))
	if err != nil {
		return fmt.Errorf("image %s: %w", r.ref, r.explain(err))
	}
	return nil
}

// explain names the remedy of what only an operator can cure.
func (r *registry) explain(err error) error {
	status, ok := errors.AsType[*fetch.StatusError](err)
	if !ok {
		return err
	}
	switch status.Code {
	case http.StatusNotFound:
		return fmt.Errorf("%w: it %w; check OCIImage", err, ErrGone)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w: the registry wants other credentials; put those for %s into RegistryAuthFile", err, r.ref.Host)
	}
	return err
}

// Keep is nothing: manifests are not stored.
func (*registry) Keep() []string { return nil }
