package oci

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"unbounded/internal/content"
	"unbounded/internal/fetch"
	"unbounded/internal/ocitest"
)

const hex64 = "c450aef0b3255c61d169b528949df158234f16391c2a70d03548e7698976aade"

func TestParse(t *testing.T) {
	for _, test := range []struct {
		text string
		want Reference
		err  string
	}{
		{"reg.example.test/a/b:v1", Reference{Host: "reg.example.test", Repo: "a/b", Tag: "v1"}, ""},
		{"reg.example.test:5000/a", Reference{Host: "reg.example.test:5000", Repo: "a", Tag: "latest"}, ""},
		{"localhost/a", Reference{Host: "localhost", Repo: "a", Tag: "latest"}, ""},
		{"[::1]:5000/a", Reference{Host: "[::1]:5000", Repo: "a", Tag: "latest"}, ""},
		{"r.test/a@sha256:" + hex64, Reference{Host: "r.test", Repo: "a", SHA256: hex64}, ""},
		{"r.test/a:v1@sha256:" + hex64, Reference{Host: "r.test", Repo: "a", Tag: "v1", SHA256: hex64}, ""},
		{"ghcr.io/azure/agent-ubuntu2404:v20260619", Reference{Host: "ghcr.io", Repo: "azure/agent-ubuntu2404", Tag: "v20260619"}, ""},
		{"oci-layout:///srv/image", Reference{Kind: Layout, Dir: "/srv/image"}, ""},
		{"oci-layout:///srv/image:v1", Reference{Kind: Layout, Dir: "/srv/image", Tag: "v1"}, ""},
		{"oci-layout:///srv/a:b/image", Reference{Kind: Layout, Dir: "/srv/a:b/image"}, ""},
		{"https://h.test/a.tar.gz?sig=x", Reference{Kind: Archive, URL: "https://h.test/a.tar.gz?sig=x"}, ""},
		{"http://10.0.0.1/a.tar", Reference{Kind: Archive, URL: "http://10.0.0.1/a.tar"}, ""},
		{"ubuntu", Reference{}, "begins with no registry host"},
		{"library/ubuntu", Reference{}, "begins with no registry host"},
		{"r.test/UPPER", Reference{}, "not a repository"},
		{"r.test/a:b:c", Reference{}, "not a tag"},
		{"r.test/../a", Reference{}, "not a repository"},
		{"r.test/a@sha512:00", Reference{}, "not a sha256 digest"},
		{"r.test@evil/a", Reference{}, "not a registry host"},
		{"r.test?x/a", Reference{}, "not a registry host"},
		{"http://h.test/a.tar", Reference{}, "plain http"},
		{"https://h.test/a.zip", Reference{}, "must name a .tar"},
		{"https://h.test/a.zip?x=.tar", Reference{}, "must name a .tar"},
		{"ftp://h.test/a.tar", Reference{}, "scheme"},
		{"oci-layout://relative", Reference{}, "clean absolute"},
		{"oci-layout:///a/../b", Reference{}, "clean absolute"},
		{"oci-layout:///a:b c", Reference{}, "not a tag"},
		{"", Reference{}, "begins with no registry host"},
	} {
		got, err := Parse(test.text)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("Parse(%q) = %v, want an error with %q", test.text, err, test.err)
			}
			continue
		}
		if diff := cmp.Diff(test.want, got, cmpopts.IgnoreUnexported(Reference{})); diff != "" || err != nil {
			t.Errorf("Parse(%q): %v\n%s", test.text, err, diff)
		}
		if strings.Contains(got.String(), "sig=") {
			t.Errorf("String() shows a query: %s", got)
		}
	}
}

func store(t *testing.T) *content.Store {
	t.Helper()
	s, err := content.Open(filepath.Join(t.TempDir(), "oci"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func image(t *testing.T, arch string) ocitest.Image {
	t.Helper()
	return ocitest.New(t, arch, ocitest.GzipLayer(t, ocitest.File("x", "x for "+arch, 0o644)), ocitest.GzipLayer(t, ocitest.File("y", "y", 0o644)))
}

// pull resolves and stores everything, as the helper does.
func pull(t *testing.T, text string, auth []byte) (Image, error) {
	t.Helper()
	return pullInto(t, store(t), text, auth)
}

func pullInto(t *testing.T, s *content.Store, text string, auth []byte) (Image, error) {
	t.Helper()
	ref, err := Parse(text)
	if err != nil {
		return Image{}, err
	}
	source, err := Open(ref, fetch.Client{Tries: 2}, auth)
	if err != nil {
		return Image{}, err
	}
	i, err := source.Resolve(t.Context(), s, "amd64")
	if err != nil {
		return i, err
	}
	for _, b := range i.Blobs() {
		if err := source.Store(t.Context(), s, b); err != nil {
			return i, err
		}
	}
	config, err := s.Get(i.Config, 1<<20)
	if err != nil {
		return i, err
	}
	if err := i.Configure(config); err != nil {
		return i, err
	}
	for _, layer := range i.Layers {
		if !s.Has(layer.Blob) || layer.DiffID == "" {
			t.Errorf("layer %s is not there, or without diff_id", layer.SHA256)
		}
	}
	return i, nil
}

func TestPull(t *testing.T) {
	r := ocitest.Serve(t)
	amd := image(t, "amd64")
	ref := r.Push("a/b", "v1", amd)
	r.Push("a/b", "latest", amd)
	for _, text := range []string{ref, r.Host() + "/a/b", r.Host() + "/a/b@sha256:" + ocitest.Sum(amd.Manifest), ref + "@sha256:" + ocitest.Sum(amd.Manifest)} {
		i, err := pull(t, text, nil)
		if err != nil || i.Manifest != ocitest.Sum(amd.Manifest) || len(i.Layers) != 2 || i.Platform != "linux/amd64" {
			t.Errorf("pull %s: %+v, %v", text, i, err)
		}
	}
	size, err := probe(t, ref)
	if want := amd.Layers[0].Size + amd.Layers[1].Size; err != nil || size != want {
		t.Errorf("Probe = %d, %v, want %d", size, err, want)
	}
}

func probe(t *testing.T, text string) (int64, error) {
	t.Helper()
	ref, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return Probe(t.Context(), ref, fetch.Client{Tries: 2}, nil, "amd64")
}

func platform(i ocitest.Image, os, arch, variant string) ispec.Descriptor {
	d := i.Descriptor()
	d.Platform = &ispec.Platform{OS: os, Architecture: arch, Variant: variant}
	return d
}

func TestIndex(t *testing.T) {
	amd, arm := image(t, "amd64"), image(t, "arm64")
	other := ocitest.New(t, "amd64", ocitest.GzipLayer(t, ocitest.File("v3", "", 0o644)))
	amdSum := ocitest.Sum(amd.Manifest)
	for _, test := range []struct {
		name      string
		manifests []ispec.Descriptor
		want, err string
	}{
		{"two platforms", []ispec.Descriptor{platform(arm, "linux", "arm64", "v8"), platform(amd, "linux", "amd64", "")}, amdSum, ""},
		{"plain before variant", []ispec.Descriptor{platform(other, "linux", "amd64", "v3"), platform(amd, "linux", "amd64", "")}, amdSum, ""},
		{"attestations are no platform", []ispec.Descriptor{platform(other, "unknown", "unknown", ""), platform(amd, "linux", "amd64", "")}, amdSum, ""},
		{"the only one, without a platform", []ispec.Descriptor{amd.Descriptor()}, amdSum, ""},
		{"the only one, of another architecture", []ispec.Descriptor{arm.Descriptor()}, "", "image is for linux/arm64, this host is linux/amd64"},
		{"not ours", []ispec.Descriptor{platform(arm, "linux", "arm64", "v8"), platform(other, "windows", "amd64", "")}, "", "has nothing for linux/amd64, only linux/arm64/v8, windows/amd64"},
		{"only a variant that may not run here", []ispec.Descriptor{platform(other, "linux", "amd64", "v3")}, "", "has nothing for"},
		{"empty", []ispec.Descriptor{}, "", "has nothing for"},
		{"another digest algorithm", []ispec.Descriptor{{MediaType: ispec.MediaTypeImageManifest, Digest: digest.SHA512.FromString("x"), Size: 1}}, "", "no sha256 digest"},
		{"size of the manifest is wrong", []ispec.Descriptor{func() ispec.Descriptor { d := amd.Descriptor(); d.Size++; return d }()}, "", "its index says"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := ocitest.Serve(t)
			for _, i := range []ocitest.Image{amd, arm, other} {
				r.Push("a", "tag-"+ocitest.Sum(i.Manifest)[:8], i)
			}
			r.PushDocument("a", "v1", ocitest.Document{MediaType: ispec.MediaTypeImageIndex, Body: ocitest.Index(t, test.manifests...)})
			i, err := pull(t, r.Host()+"/a:v1", nil)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("pull: %v, want %q", err, test.err)
				}
				return
			}
			if err != nil || i.Manifest != test.want {
				t.Errorf("pull: %s, %v, want %s", i.Manifest, err, test.want)
			}
		})
	}
}

func TestDockerTypes(t *testing.T) {
	r := ocitest.Serve(t)
	i := image(t, "amd64")
	for oci, docker := range map[string]string{
		ispec.MediaTypeImageManifest: dockerManifest, ispec.MediaTypeImageConfig: dockerConfig, ispec.MediaTypeImageLayerGzip: dockerLayer + ".gzip",
	} {
		i.Manifest = bytes.ReplaceAll(i.Manifest, []byte(oci), []byte(docker))
	}
	i.MediaType = dockerManifest
	ref := r.Push("a", "v1", i)
	if got, err := pull(t, ref, nil); err != nil || len(got.Layers) != 2 {
		t.Errorf("manifest: %v", err)
	}
	list := bytes.ReplaceAll(ocitest.Index(t, platform(i, "linux", "amd64", "")), []byte(ispec.MediaTypeImageIndex), []byte(dockerList))
	r.PushDocument("a", "list", ocitest.Document{MediaType: dockerList, Body: list})
	if got, err := pull(t, r.Host()+"/a:list", nil); err != nil || len(got.Layers) != 2 {
		t.Errorf("list: %v", err)
	}
}

// A manifest that is none, or of what is no image.
func TestBadManifest(t *testing.T) {
	good := image(t, "amd64")
	edit := func(from, to string) string { return strings.ReplaceAll(string(good.Manifest), from, to) }
	for _, test := range []struct{ name, body, kind, err string }{
		{"captive portal", "<html>log in</html>", "text/html; charset=utf-8", "captive portal"},
		{"not JSON", "hello", ispec.MediaTypeImageManifest, "not a manifest"},
		{"schema 1", `{"schemaVersion":1}`, dockerSchema1 + "+prettyjws", "schema 1"},
		{"index and manifest at once", `{"schemaVersion":2,"manifests":[],"config":{},"layers":[]}`, ispec.MediaTypeImageIndex, "at once"},
		{"neither", `{"schemaVersion":2}`, ispec.MediaTypeImageManifest, "neither"},
		{"an artifact", edit(ispec.MediaTypeImageConfig, "application/vnd.example.chart"), ispec.MediaTypeImageManifest, "is not an image"},
		{"encrypted layers", edit("tar+gzip", "tar+gzip+encrypted"), ispec.MediaTypeImageManifest, "unknown type"},
		{"no layers", `{"schemaVersion":2,"config":{"mediaType":"` + ispec.MediaTypeImageConfig + `","digest":"sha256:` + hex64 + `","size":1},"layers":[]}`, ispec.MediaTypeImageManifest, "no layers"},
		{"negative size", edit(`"size":`, `"size":-`), ispec.MediaTypeImageManifest, "with size -"},
		{"huge", strings.Repeat(" ", maxDocument+1), ispec.MediaTypeImageManifest, "more than"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := ocitest.Serve(t)
			r.Push("a", "v1", good)
			r.PushDocument("a", "v1", ocitest.Document{MediaType: test.kind, Body: []byte(test.body)})
			_, err := pull(t, r.Host()+"/a:v1", nil)
			if err == nil || !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "<html>") || strings.Contains(err.Error(), "\n") {
				t.Errorf("pull: %v, want %q", err, test.err)
			}
		})
	}
}

func TestDigestOfManifest(t *testing.T) {
	r := ocitest.Serve(t)
	ref := r.Push("a", "v1", image(t, "amd64"))
	spoil := func(w http.ResponseWriter, req *http.Request) bool {
		if strings.Contains(req.URL.Path, "/manifests/") {
			w.Header().Set("Content-Type", ispec.MediaTypeImageManifest)
			_, _ = fmt.Fprintf(w, `{"schemaVersion":2}`)
			return true
		}
		return false
	}
	r.Before = spoil
	if _, err := pull(t, ref+"@sha256:"+hex64, nil); err == nil || !strings.Contains(err.Error(), "want sha256:"+hex64) {
		t.Errorf("pull by digest: %v", err)
	}
	r.Before = func(w http.ResponseWriter, req *http.Request) bool {
		w.Header().Set("Docker-Content-Digest", "sha256:"+hex64)
		return spoil(w, req)
	}
	if _, err := pull(t, ref, nil); err == nil || !strings.Contains(err.Error(), "want sha256:"+hex64) {
		t.Errorf("pull by tag: %v", err)
	}
}

func TestBadConfig(t *testing.T) {
	for _, test := range []struct{ name, config, err string }{
		{"fewer diff_ids", `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["sha256:` + hex64 + `"]}}`, "1 diff_ids for 2 layers"},
		{"more diff_ids", `{"rootfs":{"diff_ids":["sha256:` + hex64 + `","sha256:` + hex64 + `","sha256:` + hex64 + `"]}}`, "3 diff_ids for 2 layers"},
		{"no digest", `{"rootfs":{"diff_ids":["x","y"]}}`, "no sha256 digest"},
		{"another type", `{"rootfs":{"type":"base"}}`, "rootfs.type"},
		{"another architecture", `{"os":"linux","architecture":"s390x"}`, "image is for linux/s390x"},
		{"not JSON", `x`, "read image configuration"},
	} {
		i := Image{Platform: "linux/amd64", Layers: make([]Layer, 2)}
		if err := i.Configure([]byte(test.config)); err == nil || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %v, want %q", test.name, err, test.err)
		}
	}
}

// tokens guards a registry: every request but with the current token is sent to the realm.
type tokens struct {
	realm          *httptest.Server
	user, password string
	issued, uses   int
	scopes         []string
	life           int // how many uses a token has; 0: any number
}

func guard(t *testing.T, r *ocitest.Registry, user, password string) *tokens {
	t.Helper()
	g := &tokens{user: user, password: password}
	g.realm = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if u, p, _ := req.BasicAuth(); u != g.user || p != g.password {
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		g.scopes = append(g.scopes, req.URL.Query().Get("scope"))
		g.issued++
		g.uses = 0
		_ = json.NewEncoder(w).Encode(map[string]string{"token": fmt.Sprint("token-", g.issued)})
	}))
	t.Cleanup(g.realm.Close)
	r.Before = func(w http.ResponseWriter, req *http.Request) bool {
		if g.uses++; req.Header.Get("Authorization") == fmt.Sprint("Bearer token-", g.issued) && (g.life == 0 || g.uses <= g.life) {
			return false
		}
		w.Header().Set("Www-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test",scope="repository:a:pull"`, g.realm.URL))
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		return true
	}
	return g
}

func loginFor(host, password string) []byte {
	return fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("me:"+password)))
}

func TestTokens(t *testing.T) {
	for _, test := range []struct {
		name, user, password string
		auth                 func(host string) []byte
		life                 int
		err                  string
	}{
		{"anonymous", "", "", nil, 0, ""},
		{"with credentials", "me", "SECRET", func(h string) []byte { return loginFor(h, "SECRET") }, 0, ""},
		{"tokens expire after two uses", "me", "SECRET", func(h string) []byte { return loginFor(h, "SECRET") }, 2, ""},
		{"none", "me", "SECRET", nil, 0, "wants other credentials; put those for"},
		{"wrong", "me", "SECRET", func(h string) []byte { return loginFor(h, "WRONG") }, 0, "wants other credentials; put those for"},
		{"of another registry", "me", "SECRET", func(string) []byte { return loginFor("other.test", "SECRET") }, 0, "wants other credentials"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := ocitest.Serve(t)
			ref := r.Push("a", "v1", image(t, "amd64"))
			g := guard(t, r, test.user, test.password)
			g.life = test.life
			var auth []byte
			if test.auth != nil {
				auth = test.auth(r.Host())
			}
			_, err := pull(t, ref, auth)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "WRONG") {
					t.Errorf("pull: %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if test.life == 0 && g.issued != 1 {
				t.Errorf("%d tokens fetched, want 1", g.issued)
			}
			if g.scopes[0] != "repository:a:pull" {
				t.Errorf("scope %q", g.scopes[0])
			}
		})
	}
}

// Credentials do not go to a server for tokens without TLS, wherever the registry points.
func TestRealmInTheClear(t *testing.T) {
	r := ocitest.Serve(t)
	ref := r.Push("a", "v1", image(t, "amd64"))
	r.Before = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Www-Authenticate", `Bearer realm="http://tokens.example.test/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	if _, err := pull(t, ref, loginFor(r.Host(), "SECRET")); err == nil || !strings.Contains(err.Error(), "plain http") {
		t.Errorf("pull: %v, want a refusal", err)
	}
}

func TestBasicAuth(t *testing.T) {
	r := ocitest.Serve(t)
	ref := r.Push("a", "v1", image(t, "amd64"))
	r.Before = func(w http.ResponseWriter, req *http.Request) bool {
		if u, p, _ := req.BasicAuth(); u == "me" && p == "pw" {
			return false
		}
		w.Header().Set("Www-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	if _, err := pull(t, ref, loginFor(r.Host(), "pw")); err != nil {
		t.Error(err)
	}
	for _, auth := range [][]byte{nil, loginFor(r.Host(), "no")} {
		if _, err := pull(t, ref, auth); err == nil || !strings.Contains(err.Error(), "wants other credentials") {
			t.Errorf("pull: %v", err)
		}
	}
	if _, err := pull(t, ref, []byte("nonsense")); err == nil || strings.Contains(err.Error(), "nonsense") {
		t.Errorf("credentials that are none: %v", err)
	}
}

// A blob is often somewhere else; that host must not see the registry's credentials.
func TestRedirectedBlobs(t *testing.T) {
	r := ocitest.Serve(t)
	i := image(t, "amd64")
	ref := r.Push("a", "v1", i)
	seen := 0
	cdn := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		seen++
		for _, name := range []string{"Authorization", "Referer"} {
			if req.Header.Get(name) != "" {
				t.Errorf("the other host got %s", name)
			}
		}
		_, _ = w.Write(i.Blobs[req.URL.Path[1:]])
	}))
	defer cdn.Close()
	guard(t, r, "me", "SECRET")
	allowed := r.Before
	r.Before = func(w http.ResponseWriter, req *http.Request) bool {
		if allowed(w, req) {
			return true
		}
		if _, sum, found := strings.Cut(req.URL.Path, "/blobs/sha256:"); found {
			http.Redirect(w, req, cdn.URL+"/"+sum+"?sig=SECRET", http.StatusTemporaryRedirect)
			return true
		}
		return false
	}
	if _, err := pull(t, ref, loginFor(r.Host(), "SECRET")); err != nil || seen != 3 {
		t.Errorf("pull: %v, %d requests at the other host", err, seen)
	}
	// Its failures do not show the signature, and a retry begins at the registry again.
	cdn.Config.Handler = http.NotFoundHandler()
	if _, err := pull(t, ref, loginFor(r.Host(), "SECRET")); err == nil || strings.Contains(err.Error(), "SECRET") || !errors.Is(err, ErrGone) {
		t.Errorf("pull: %v", err)
	}
}

func TestRegistryIsDown(t *testing.T) {
	r := ocitest.Serve(t)
	ref := r.Push("a", "v1", image(t, "amd64"))
	for _, code := range []int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusInternalServerError} {
		times := 0
		r.Before = func(w http.ResponseWriter, _ *http.Request) bool {
			if times++; times%2 == 1 {
				w.WriteHeader(code)
				return true
			}
			return false
		}
		if _, err := pull(t, ref, nil); err != nil {
			t.Errorf("%d once: %v", code, err)
		}
	}
	r.Before = nil
	for text, want := range map[string]string{
		r.Host() + "/a:v2": "is not there; check OCIImage", r.Host() + "/b:v1": "is not there; check OCIImage",
	} {
		if _, err := pull(t, text, nil); err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, ErrGone) {
			t.Errorf("pull %s: %v, want %q", text, err, want)
		}
	}
	r.Close()
	if _, err := pull(t, ref, nil); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("pull: %v", err)
	}
}

// writeLayout writes images as a layout, each under its tag.
func writeLayout(t *testing.T, images map[string]ocitest.Image) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range layoutFiles(t, images) {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func layoutFiles(t *testing.T, images map[string]ocitest.Image) map[string][]byte {
	t.Helper()
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	var manifests []ispec.Descriptor
	for tag, i := range images {
		d := i.Descriptor()
		if tag != "" {
			d.Annotations = map[string]string{ispec.AnnotationRefName: tag}
		}
		manifests = append(manifests, d)
		files["blobs/sha256/"+ocitest.Sum(i.Manifest)] = i.Manifest
		for sum, data := range i.Blobs {
			files["blobs/sha256/"+sum] = data
		}
	}
	files["index.json"] = ocitest.Index(t, manifests...)
	return files
}

func TestLayout(t *testing.T) {
	amd := image(t, "amd64")
	other := ocitest.New(t, "amd64", ocitest.GzipLayer(t, ocitest.File("z", "", 0o644)))
	one := writeLayout(t, map[string]ocitest.Image{"v1": amd})
	two := writeLayout(t, map[string]ocitest.Image{"v1": amd, "v2": other})
	spoiled := writeLayout(t, map[string]ocitest.Image{"v1": amd})
	if err := os.WriteFile(filepath.Join(spoiled, "blobs/sha256", amd.Layers[0].Digest.Encoded()), []byte("bad"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, ref, want, err string }{
		{"the only one", one, ocitest.Sum(amd.Manifest), ""},
		{"by tag", two + ":v2", ocitest.Sum(other.Manifest), ""},
		{"several", two, "", "has 2 references, want exactly one"},
		{"no such tag", one + ":v9", "", `has no tag "v9"`},
		{"no layout", t.TempDir(), "", "index.json"},
		{"a spoiled blob", spoiled, "", "3 bytes, want"},
	} {
		t.Run(test.name, func(t *testing.T) {
			i, err := pull(t, "oci-layout://"+test.ref, nil)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("pull: %v, want %q", err, test.err)
				}
				return
			}
			if err != nil || i.Manifest != test.want {
				t.Errorf("pull: %s, %v, want %s", i.Manifest, err, test.want)
			}
		})
	}
}

func tarOf(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var entries []ocitest.Entry
	for name, data := range files {
		entries = append(entries, ocitest.File(name, string(data), 0o644))
	}
	return ocitest.Tar(t, entries...)
}

func TestArchive(t *testing.T) {
	amd := image(t, "amd64")
	good := layoutFiles(t, map[string]ocitest.Image{"v1": amd})
	also := func(name, data string) map[string][]byte {
		files := map[string][]byte{}
		for n, d := range good {
			files[n] = d
		}
		files[name] = []byte(data)
		return files
	}
	escape := ocitest.Tar(t, ocitest.Link(tar.TypeSymlink, "blobs", "/tmp"), ocitest.File("blobs/sha256/../../x", "x", 0o644))
	for _, test := range []struct {
		name string
		body []byte
		err  string
	}{
		{"tar", tarOf(t, good), ""},
		{"gzip", ocitest.Gzip(t, tarOf(t, good)), ""},
		{"two tags", tarOf(t, layoutFiles(t, map[string]ocitest.Image{"v1": amd, "v2": amd})), "exactly one"},
		{"no tag", tarOf(t, layoutFiles(t, map[string]ocitest.Image{"": amd})), "valid tag"},
		{"a second layout", tarOf(t, also("other/oci-layout", "{}")), "below its top"},
		{"no layout", tarOf(t, map[string][]byte{"x": nil}), "no OCI layout"},
		{"blob with a wrong name", tarOf(t, also("blobs/sha256/"+hex64, "x")), "its bytes have sha256"},
		{"links", escape, "no OCI layout"},
		{"captive portal", []byte("<html>"), "read archive"},
	} {
		t.Run(test.name, func(t *testing.T) {
			requests := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				requests++
				http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(test.body))
			}))
			defer server.Close()
			s := store(t)
			i, err := pullInto(t, s, server.URL+"/image.tar?sig=SECRET", nil)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "SECRET") {
					t.Errorf("pull: %v, want %q", err, test.err)
				}
				return
			}
			if err != nil || i.Manifest != ocitest.Sum(amd.Manifest) {
				t.Fatalf("pull: %s, %v", i.Manifest, err)
			}
			// With another signature it is the same archive: nothing is fetched again.
			before := requests
			if _, err := pullInto(t, s, server.URL+"/image.tar?sig=OTHER", nil); err != nil || requests != before {
				t.Errorf("again: %v, %d requests more", err, requests-before)
			}
			// A blob that is gone brings the whole archive once more.
			if err := s.Delete(amd.Layers[0].Digest.Encoded()); err != nil {
				t.Fatal(err)
			}
			if _, err := pullInto(t, s, server.URL+"/image.tar?sig=OTHER", nil); err != nil || requests != before+1 {
				t.Errorf("after a blob was lost: %v, %d requests more", err, requests-before)
			}
			if size, err := probe(t, server.URL+"/image.tar"); err != nil || size != int64(len(test.body)) {
				t.Errorf("Probe = %d, %v", size, err)
			}
		})
	}
}
