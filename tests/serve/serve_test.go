package serve

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// newLayout is a layout with one manifest, of which only the text counts here.
func newLayout(t *testing.T) (dir, digest string) {
	t.Helper()
	dir = t.TempDir()
	digest = "sha256:" + strings.Repeat("ab", 32)
	blobs := filepath.Join(dir, "blobs/sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	index := `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"` + digest +
		`","annotations":{"org.opencontainers.image.ref.name":"node"}}]}`
	for name, content := range map[string]string{
		filepath.Join(dir, "index.json"):               index,
		filepath.Join(blobs, strings.Repeat("ab", 32)): `{"config":{}}`,
		filepath.Join(blobs, strings.Repeat("cd", 32)): "0123456789",
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, digest
}

func TestServer(t *testing.T) {
	dir, digest := newLayout(t)
	blob := "/v2/a/b/blobs/sha256:" + strings.Repeat("cd", 32)
	tests := []struct {
		name   string
		fault  Fault
		path   string
		header http.Header
		status int
		body   string
		cut    bool
	}{
		{name: "ping", path: "/v2/", status: 200},
		{name: "tag", path: "/v2/a/b/manifests/node", status: 200, body: `{"config":{}}`},
		{name: "digest", path: "/v2/a/b/manifests/" + digest, status: 200, body: `{"config":{}}`},
		{name: "unknown tag", path: "/v2/a/b/manifests/other", status: 404},
		{name: "not a digest", path: "/v2/a/b/blobs/sha256:..", status: 404},
		{name: "blob", path: blob, status: 200, body: "0123456789"},
		{name: "range", path: blob, header: http.Header{"Range": {"bytes=4-"}}, status: 206, body: "456789"},
		{name: "whole", fault: Whole(), path: blob, header: http.Header{"Range": {"bytes=4-"}}, status: 200, body: "0123456789"},
		{name: "cut", fault: Cut(3), path: blob, status: 200, body: "012", cut: true},
		{name: "corrupt", fault: Corrupt(1), path: blob, status: 200, body: "0\xce23456789"},
		{name: "slow", fault: Slow(4, time.Millisecond), path: blob, status: 200, body: "0123456789"},
		{name: "busy", fault: Answer(429, "Retry-After", "1"), path: blob, status: 429},
		{name: "no token", fault: Token("http://x", "u", "p"), path: blob, status: 401},
		{
			name: "token", fault: Token("http://x", "u", "p"), path: blob,
			header: http.Header{"Authorization": {"Bearer ground-token"}}, status: 200, body: "0123456789",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := &Server{handler: Layout(dir)}
			if test.fault != nil {
				s.Fail("", 1, test.fault)
			}
			server := httptest.NewServer(s)
			defer server.Close()
			status, body, err := get(t.Context(), server.URL+test.path, test.header)
			if status != test.status || (err != nil) != test.cut {
				t.Errorf("get %s = %d, %v, want %d, cut %v", test.path, status, err, test.status, test.cut)
			}
			if status < 400 && body != test.body {
				t.Errorf("get %s = %q, want %q", test.path, body, test.body)
			}
			if got := s.Requests(); len(got) != 1 || got[0].Path != test.path {
				t.Errorf("Requests() = %v, want the one", got)
			}
		})
	}
}

func get(ctx context.Context, url string, header http.Header) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	request.Header = header
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}
