package fetch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func content(size int) ([]byte, string) {
	data := make([]byte, size)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(data)
	sum := sha256.Sum256(data)
	return data, hex.EncodeToString(sum[:])
}

// rig is one fetch against one server.
type rig struct {
	*Client
	server   *httptest.Server
	delays   []time.Duration
	requests atomic.Int64
	dir      string
}

func newRig(t *testing.T, handle func(n int64, w http.ResponseWriter, r *http.Request)) *rig {
	t.Helper()
	x := &rig{dir: t.TempDir()}
	x.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handle(x.requests.Add(1), w, r)
	}))
	t.Cleanup(x.server.Close)
	x.Client = &Client{HTTP: NewHTTP(), Tries: 4, Stall: 5 * time.Second, wait: func(_ context.Context, d time.Duration) error {
		x.delays = append(x.delays, d)
		return nil
	}}
	return x
}

func (x *rig) path() string    { return filepath.Join(x.dir, "file") }
func (x *rig) partial() string { return filepath.Join(x.dir, "partial") }

func (x *rig) file(t *testing.T, size int64, sum string) error {
	t.Helper()
	return x.File(t.Context(), Want{URL: x.server.URL + "/blob?sig=SECRET", Size: size, SHA256: sum}, x.partial(), x.path())
}

// cut ends the connection after n bytes of the body.
func cut(w http.ResponseWriter, body []byte, n int) {
	_, _ = w.Write(body[:n])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

func TestFileAgainstServersThatMisbehave(t *testing.T) {
	data, sum := content(1 << 20)
	size := len(data)
	serve := func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}
	for _, test := range []struct {
		name     string
		handle   func(n int64, w http.ResponseWriter, r *http.Request)
		requests int64
		err      string
	}{
		{"well", func(_ int64, w http.ResponseWriter, r *http.Request) { serve(w, r) }, 1, ""},
		{"cut off once, goes on", func(n int64, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				w.Header().Set("Content-Length", strconv.Itoa(size))
				cut(w, data, size/2)
			}
			if r.Header.Get("Range") != fmt.Sprintf("bytes=%d-", size/2) {
				t.Errorf("Range is %q", r.Header.Get("Range"))
			}
			serve(w, r)
		}, 2, ""},
		{"cut off again and again, but further each time", func(_ int64, w http.ResponseWriter, r *http.Request) {
			from := 0
			_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
			if from > 0 {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, size-1, size))
			}
			w.Header().Set("Content-Length", strconv.Itoa(size-from))
			if from > 0 {
				w.WriteHeader(http.StatusPartialContent)
			}
			if size-from > size/3+1 {
				cut(w, data[from:], size/3)
			}
			_, _ = w.Write(data[from:])
		}, 3, ""},
		{"always cut off at the same place", func(_ int64, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(size))
			cut(w, data, 100_000)
		}, 4, "broke off"},
		{"answers a range with the whole", func(n int64, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(size))
			if n == 1 {
				cut(w, data, size/2)
			}
			_, _ = w.Write(data)
		}, 2, ""},
		{"answers with another range", func(n int64, w http.ResponseWriter, r *http.Request) {
			switch {
			case n == 1:
				w.Header().Set("Content-Length", strconv.Itoa(size))
				cut(w, data, size/2)
			case r.Header.Get("Range") != "":
				w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", size-1, size))
				w.WriteHeader(http.StatusPartialContent)
			}
			_, _ = w.Write(data)
		}, 3, ""},
		{"refuses the range", func(n int64, w http.ResponseWriter, r *http.Request) {
			switch {
			case n == 1:
				w.Header().Set("Content-Length", strconv.Itoa(size))
				cut(w, data, size/2)
			case r.Header.Get("Range") != "":
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				_, _ = w.Write(data[:100])
				return
			}
			_, _ = w.Write(data)
		}, 3, ""},
		{"wrong bytes once", func(n int64, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				_, _ = w.Write(bytes.Repeat([]byte("x"), size))
				return
			}
			serve(w, r)
		}, 2, ""},
		{"wrong bytes always", func(_ int64, w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte("x"), size)) }, 2, "not the promised content: sha256 is"},
		{"announces another length", func(_ int64, w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data[:1000]) }, 2, "announces 1000 bytes"},
		{"endless body", func(_ int64, w http.ResponseWriter, _ *http.Request) {
			for range 3 {
				_, _ = w.Write(data)
			}
		}, 2, "bytes, want"},
		{"captive portal", func(_ int64, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<html>log in</html>"))
		}, 2, "announces 19 bytes"},
		{"503 twice", func(n int64, w http.ResponseWriter, r *http.Request) {
			if n < 3 {
				http.Error(w, "busy", http.StatusServiceUnavailable)
				return
			}
			serve(w, r)
		}, 3, ""},
		{"503 for ever", func(_ int64, w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "busy", http.StatusServiceUnavailable)
		}, 4, "answered 503 Service Unavailable (tried 4 times)"},
		{"404", func(_ int64, w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }, 1, "answered 404 Not Found"},
		{"closed before the header", func(n int64, w http.ResponseWriter, r *http.Request) {
			if n < 3 {
				panic(http.ErrAbortHandler)
			}
			serve(w, r)
		}, 3, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := newRig(t, test.handle)
			err := x.file(t, int64(size), sum)
			got, _ := os.ReadFile(x.path())
			switch {
			case test.err == "" && (err != nil || !bytes.Equal(got, data)):
				t.Fatalf("File: %v, %d bytes", err, len(got))
			case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
				t.Fatalf("File: %v, want an error with %q", err, test.err)
			case test.err != "" && got != nil:
				t.Error("the file is there after a failure")
			case err != nil && (strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "\n")):
				t.Errorf("error shows a query or is not one line: %q", err)
			}
			// net/http itself sends a request again when a kept connection closes before the header.
			if n := x.requests.Load(); n != test.requests && test.name != "closed before the header" {
				t.Errorf("%d requests, want %d", n, test.requests)
			}
			if _, err := os.Stat(x.partial()); test.err == "" && err == nil {
				t.Error("the partial file is left")
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	data, sum := content(1000)
	for _, test := range []struct {
		name     string
		value    string
		min, max time.Duration
		err      string
	}{
		{"seconds", "7", 7 * time.Second, 7 * time.Second, ""},
		{"date", time.Now().Add(40 * time.Second).UTC().Format(http.TimeFormat), 38 * time.Second, 40 * time.Second, ""},
		{"a date in the past", "Mon, 02 Jan 2006 15:04:05 GMT", 0, time.Second, ""},
		{"nonsense", "soon", 0, time.Second, ""},
		{"too long", "86400", 0, 0, "asks to wait 24h0m0s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := newRig(t, func(n int64, w http.ResponseWriter, _ *http.Request) {
				if n == 1 {
					w.Header().Set("Retry-After", test.value)
					w.WriteHeader(http.StatusTooManyRequests)
					return
				}
				_, _ = w.Write(data)
			})
			err := x.file(t, 1000, sum)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("File: %v, want %q", err, test.err)
				}
				return
			}
			if err != nil || len(x.delays) != 1 || x.delays[0] < test.min || x.delays[0] > test.max {
				t.Errorf("File: %v, delays %v, want one of %s to %s", err, x.delays, test.min, test.max)
			}
		})
	}
}

// A body, or a header, that does not come is cut, and the file goes on.
func TestStall(t *testing.T) {
	data, sum := content(1 << 20)
	release := make(chan struct{})
	defer close(release)
	for _, test := range []struct {
		name  string
		bytes int
	}{{"in the body", 600_000}, {"before the header", 0}} {
		t.Run(test.name, func(t *testing.T) {
			x := newRig(t, func(n int64, w http.ResponseWriter, r *http.Request) {
				if n == 1 {
					if test.bytes > 0 {
						w.Header().Set("Content-Length", strconv.Itoa(len(data)))
						_, _ = w.Write(data[:test.bytes])
						w.(http.Flusher).Flush()
					}
					select {
					case <-release:
					case <-r.Context().Done():
					}
					return
				}
				http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
			})
			x.Stall = time.Second
			var said string
			x.Status = func(format string, args ...any) { said += fmt.Sprintf(format, args...) }
			if err := x.file(t, int64(len(data)), sum); err != nil {
				t.Fatal(err)
			}
			if x.requests.Load() != 2 || !strings.Contains(said, "no byte came for 1s") || strings.Contains(said, "SECRET") {
				t.Errorf("%d requests, status %q", x.requests.Load(), said)
			}
		})
	}
}

// A slow server is none that stalls.
func TestSlow(t *testing.T) {
	data, sum := content(20)
	x := newRig(t, func(_ int64, w http.ResponseWriter, _ *http.Request) {
		for n := range data {
			_, _ = w.Write(data[n : n+1])
			w.(http.Flusher).Flush()
			time.Sleep(100 * time.Millisecond)
		}
	})
	x.Stall = time.Second
	if err := x.file(t, 20, sum); err != nil || x.requests.Load() != 1 {
		t.Errorf("File: %v after %d requests", err, x.requests.Load())
	}
}

// What an earlier process left is gone on from, or thrown away when it is wrong.
func TestPartial(t *testing.T) {
	data, sum := content(100_000)
	for _, test := range []struct {
		name     string
		left     []byte
		size     int64
		ranges   []string
		requests int64
	}{
		{"a part", data[:40_000], 100_000, []string{"bytes=40000-"}, 1},
		{"a part, size unknown", data[:40_000], -1, []string{"bytes=40000-"}, 1},
		{"all of it", data, 100_000, nil, 0},
		{"all of it, size unknown", data, -1, []string{"bytes=100000-"}, 1},
		{"too much", append(bytes.Clone(data), 1), 100_000, []string{""}, 1},
		{"a wrong part", bytes.Repeat([]byte("x"), 40_000), 100_000, []string{"bytes=40000-", ""}, 2},
		{"wrong, and as long", bytes.Repeat([]byte("x"), 100_000), 100_000, []string{""}, 1},
		{"nothing", nil, 100_000, []string{""}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			var ranges []string
			x := newRig(t, func(_ int64, w http.ResponseWriter, r *http.Request) {
				ranges = append(ranges, r.Header.Get("Range"))
				http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
			})
			if err := os.WriteFile(x.partial(), test.left, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := x.file(t, test.size, sum); err != nil {
				t.Fatal(err)
			}
			if got, _ := os.ReadFile(x.path()); !bytes.Equal(got, data) {
				t.Errorf("content differs")
			}
			if diff := cmp.Diff(test.ranges, ranges); diff != "" {
				t.Errorf("ranges (-want +got):\n%s", diff)
			}
		})
	}
}

// Without a digest only a strong ETag lets a file go on; it may be another one by now.
func TestWithoutDigest(t *testing.T) {
	first, _ := content(400_000)
	second := bytes.Repeat([]byte("second"), 50_000)
	for _, test := range []struct {
		name string
		tag  string
		want []byte
	}{{"etag", `"1"`, second}, {"weak etag", `W/"1"`, second}, {"none", "", second}} {
		t.Run(test.name, func(t *testing.T) {
			x := newRig(t, func(n int64, w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Etag", test.tag)
				if n == 1 {
					w.Header().Set("Content-Length", strconv.Itoa(len(first)))
					cut(w, first, 300_000)
				}
				w.Header().Set("Etag", strings.ReplaceAll(test.tag, "1", "2"))
				http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(second))
			})
			if err := os.WriteFile(x.partial(), []byte("left"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := x.file(t, -1, ""); err != nil {
				t.Fatal(err)
			}
			if got, _ := os.ReadFile(x.path()); !bytes.Equal(got, test.want) {
				t.Errorf("the file is a mix of two")
			}
		})
	}
}

func TestRedirect(t *testing.T) {
	var got http.Header
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		_, _ = w.Write([]byte("hello"))
	}))
	defer other.Close()
	secure := httptest.NewTLSServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer secure.Close()
	for _, test := range []struct {
		name, to, err string
	}{
		{"to another host", other.URL + "/x", ""},
		{"to plain http at a name", "http://example.test/x", "plain http is for localhost and private IP literals only"},
		{"to a file", "file:///etc/passwd", `scheme "file" is not https`},
		{"in a circle", "/again", "more than 10 redirects"},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := newRig(t, func(_ int64, w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, test.to, http.StatusFound)
			})
			doc, err := x.Bytes(t.Context(), x.server.URL+"/a?sig=SECRET", http.Header{"Authorization": {"Bearer SECRET"}}, 100)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "SECRET") || len(x.delays) > 0 {
					t.Errorf("Bytes: %v after %v, want %q at once", err, x.delays, test.err)
				}
				return
			}
			if err != nil || string(doc.Body) != "hello" {
				t.Fatalf("Bytes: %q, %v", doc.Body, err)
			}
			for _, name := range []string{"Authorization", "Referer"} {
				if got.Get(name) != "" {
					t.Errorf("%s went to another host: %q", name, got.Get(name))
				}
			}
		})
	}
	t.Run("from https to http", func(t *testing.T) {
		client := NewHTTP()
		client.Transport = secure.Client().Transport
		_, err := (&Client{HTTP: client}).Bytes(t.Context(), secure.URL, nil, 100)
		if err == nil || !strings.Contains(err.Error(), "redirect from https to http refused") {
			t.Errorf("Bytes: %v, want a refusal", err)
		}
	})
}

// What only an operator can cure is said at once, in one line.
func TestAtOnce(t *testing.T) {
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for _, test := range []struct{ name, url, err string }{
		{"unknown authority", secure.URL, "unknown authority"},
		{"http where https is spoken", strings.Replace(plain.URL, "http:", "https:", 1), "speaks plain http"},
		{"plain http at a name", "http://example.test/", "plain http"},
		{"another scheme", "ftp://example.test/", `scheme "ftp"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			waits := 0
			c := &Client{HTTP: NewHTTP(), wait: func(context.Context, time.Duration) error { waits++; return nil }}
			_, err := c.Bytes(t.Context(), test.url, nil, 100)
			if err == nil || !strings.Contains(err.Error(), test.err) || waits > 0 {
				t.Errorf("Bytes: %v after %d waits, want %q at once", err, waits, test.err)
			}
		})
	}
}

func TestNobodyThere(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	for _, test := range []struct {
		name, url string
		is        func(error) bool
	}{
		{"refused", "http://" + address, func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }},
		{"name not found", "https://nothing.invalid/", func(err error) bool { _, ok := errors.AsType[*net.DNSError](err); return ok }},
	} {
		t.Run(test.name, func(t *testing.T) {
			waits := 0
			c := &Client{HTTP: NewHTTP(), Tries: 3, wait: func(context.Context, time.Duration) error { waits++; return nil }}
			_, err := c.Bytes(t.Context(), test.url, nil, 100)
			if err == nil || !test.is(err) || waits != 2 {
				t.Errorf("Bytes: %v after %d waits, want 2", err, waits)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	x := newRig(t, func(_ int64, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	x.wait = nil
	ctx, cancel := context.WithCancel(t.Context())
	x.Status = func(string, ...any) { cancel() }
	if _, err := x.Bytes(ctx, x.server.URL, nil, 10); !errors.Is(err, context.Canceled) {
		t.Errorf("Bytes: %v, want it canceled", err)
	}
}

func TestTooLarge(t *testing.T) {
	x := newRig(t, func(_ int64, w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 100)) })
	if _, err := x.Bytes(t.Context(), x.server.URL, nil, 99); err == nil || !strings.Contains(err.Error(), "more than 99 bytes") {
		t.Errorf("Bytes: %v", err)
	}
}

func TestProbe(t *testing.T) {
	for _, test := range []struct {
		name   string
		handle func(w http.ResponseWriter, r *http.Request)
		size   int64
		err    string
	}{
		{"head", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "42") }, 42, ""},
		{"no head", func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			w.Header().Set("Content-Range", "bytes 0-0/77")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write([]byte("x"))
		}, 77, ""},
		{"absent", http.NotFound, -1, "answered 404"},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := newRig(t, func(_ int64, w http.ResponseWriter, r *http.Request) { test.handle(w, r) })
			size, err := x.Probe(t.Context(), x.server.URL, nil)
			if size != test.size || (err == nil) != (test.err == "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
				t.Errorf("Probe = %d, %v, want %d, %q", size, err, test.size, test.err)
			}
		})
	}
}

func TestPlainAllowed(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "127.0.0.1": true, "127.9.9.9:80": true, "[::1]:5000": true, "[::1]": true, "::1": true,
		"10.1.2.3:5000": true, "192.168.0.1": true, "172.16.0.1": true, "[fd00::1]:80": true, "::ffff:10.0.0.1": true,
		"example.test": false, "localhost.example.test": false, "8.8.8.8": false, "172.32.0.1": false, "169.254.169.254": false, "": false,
		"10.1.2.3.example.test": false, "[2001:db8::1]:80": false, "0.0.0.0": false,
	} {
		if got := PlainAllowed(host); got != want {
			t.Errorf("PlainAllowed(%q) = %v, want %v", host, got, want)
		}
	}
}

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		`Get "https://h/p?sig=SECRET&x=1": EOF`:  `Get "https://h/p?[redacted]": EOF`,
		"https://user:SECRET@h/p":                "https://h/p",
		"HTTPS://user:SECRET@h/p?SECRET":         "HTTPS://h/p?[redacted]",
		"https://SECRET@h:80/p?SECRET, and more": "https://h:80/p?[redacted] and more",
		"no url":                                 "no url",
		"http://h/p":                             "http://h/p",
	} {
		if got := Redact(text); strings.Contains(got, "SECRET") || (got != want && !strings.Contains(text, ",")) {
			t.Errorf("Redact(%q) = %q, want %q", text, got, want)
		}
	}
	inner := &url.Error{Op: "Get", URL: "https://h/?SECRET", Err: errors.New("x")}
	if err := error(redacted{inner}); strings.Contains(err.Error(), "SECRET") || !errors.Is(err, inner) {
		t.Errorf("redacted: %v", err)
	}
}

// A disk that is full ends the fetch at once and keeps what came.
func TestNoSpace(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root, and CI must not skip it")
		}
		t.Skip("SKIPPED: needs root")
	}
	data, sum := content(1 << 20)
	x := newRig(t, func(_ int64, w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	})
	if err := syscall.Mount("tmpfs", x.dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(x.dir, syscall.MNT_DETACH) })
	err := x.file(t, int64(len(data)), sum)
	info, stat := os.Stat(x.partial())
	if !errors.Is(err, syscall.ENOSPC) || len(x.delays) != 0 || stat != nil || info.Size() < 400_000 {
		t.Errorf("File: %v after %v, %v; want ENOSPC at once, and what came is kept", err, x.delays, stat)
	}
}
