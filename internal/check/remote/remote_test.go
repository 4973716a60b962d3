package remote

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/apiserver"
	"unbounded/internal/check"
	"unbounded/internal/config"
	"unbounded/internal/fetch"
)

// authority makes a self-signed certificate for 127.0.0.1, valid from and to hours from now.
func authority(t *testing.T, name string, from, to time.Duration) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// server is an API server with the certificate, whose clock is ahead.
func server(t *testing.T, certificate tls.Certificate, status int, ahead time.Duration) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		w.WriteHeader(status)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

// said is name=severity of each result, and everything they say.
func said(results []check.Result, name string) (short []string, text string) {
	for _, result := range results {
		if result.Name == "" {
			result = result.As(name)
		}
		short = append(short, result.Name+"="+string(result.Severity))
		text += result.String() + "\n"
	}
	return short, text
}

func TestAPI(t *testing.T) {
	certificate, ca := authority(t, "ca", -time.Hour, time.Hour)
	_, otherCA := authority(t, "other", -time.Hour, time.Hour)
	future, futureCA := authority(t, "future", 30*time.Minute, time.Hour)
	closed := httptest.NewServer(nil)
	closed.Close()
	const name, clock = "api-server-reachable", "clock-skew"
	for _, test := range []struct {
		name  string
		url   string
		ca    []byte
		want  []string
		parts []string
	}{
		{"well", server(t, certificate, 200, 0), ca, []string{name + "=ok", clock + "=ok"}, nil},
		{"anonymous may not ask", server(t, certificate, 401, 0), ca, []string{name + "=ok", clock + "=ok"}, nil},
		{"not up", server(t, certificate, 500, 0), ca, []string{name + "=error"}, []string{"answers 500", "firewalls"}},
		{"refused", strings.Replace(closed.URL, "http:", "https:", 1), ca, []string{name + "=error"}, []string{"not reachable", "Kubelet.ApiServer"}},
		{"another CA", server(t, certificate, 200, 0), otherCA, []string{name + "=error"}, []string{"not trusted", "Cluster.CaCertBase64"}},
		{"not valid yet, our clock is behind", server(t, future, 200, 45*time.Minute), futureCA, []string{name + "=error", clock + "=error"}, []string{"set the clock", "behind"}},
		{"a minute ahead", server(t, certificate, 200, -time.Minute), ca, []string{name + "=ok", clock + "=warning"}, []string{"ahead of", "5m0s"}},
		{"ten minutes behind", server(t, certificate, 200, 10*time.Minute), ca, []string{name + "=ok", clock + "=error"}, []string{"behind", "5m0s", "timedatectl"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			results := API(apiserver.Server{URL: test.url, CA: test.ca}).Look(t.Context())
			got, text := said(results, name)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s%s", diff, text)
			}
			for _, part := range test.parts {
				if !strings.Contains(text, part) {
					t.Errorf("%q, want %q in it", text, part)
				}
			}
		})
	}
}

func TestConfiguration(t *testing.T) {
	problems := config.Problems{{Path: "OCIImage", What: "is missing", Fix: "give one"}, {Path: "Cluster.Version", What: "is missing"}}
	for _, test := range []struct {
		name   string
		config *config.Config
		err    error
		want   []string
		text   string
	}{
		{"well", &config.Config{NodeName: "n", Version: "1.34.0"}, nil, []string{"agent-config=ok"}, "node n, Kubernetes 1.34.0"},
		{"remarks", &config.Config{Notices: []string{"a", "b"}}, nil, []string{"agent-config=warning", "agent-config=warning"}, "agent-config: a"},
		{"problems", nil, problems, []string{"agent-config=error", "agent-config=error"}, "give one"},
		{"another error", nil, errors.New("unreadable"), []string{"agent-config=error"}, "unreadable"},
	} {
		got, text := said(Configuration(test.config, test.err).Look(t.Context()), "agent-config")
		if diff := cmp.Diff(test.want, got); diff != "" || !strings.Contains(text, test.text) {
			t.Errorf("%s: %s%s", test.name, diff, text)
		}
	}
}

func TestCredentials(t *testing.T) {
	_, ca := authority(t, "ca", -time.Hour, time.Hour)
	_, old := authority(t, "old", -2*time.Hour, -time.Hour)
	_, future := authority(t, "future", time.Hour, 2*time.Hour)
	for _, test := range []struct {
		name   string
		config config.Config
		want   []string
		part   string
	}{
		{"well", config.Config{CA: ca}, []string{"=ok"}, ""},
		{"an old one beside", config.Config{CA: append(old, ca...)}, []string{"=warning"}, `"old" has expired on`},
		{"an old one alone", config.Config{CA: old}, []string{"=warning", "=error"}, "no certificate that is valid now"},
		{"not valid yet", config.Config{CA: future}, []string{"=warning", "=error"}, "by the clock of this host"},
		{"not one", config.Config{CA: []byte("-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n")}, []string{"=error", "=error"}, "not a certificate"},
		{"kubeconfig", config.Config{Kubeconfig: []byte("current-context: x")}, []string{"=error"}, "Kubelet.KubeconfigData"},
	} {
		got, text := said(Credentials(&test.config, time.Now()).Look(t.Context()), "")
		if diff := cmp.Diff(test.want, got); diff != "" || !strings.Contains(text, test.part) {
			t.Errorf("%s: %s%s", test.name, diff, text)
		}
	}
}

func TestServer(t *testing.T) {
	data := `{"current-context":"a","clusters":[{"name":"c","cluster":{"server":"https://embedded:6443","certificate-authority-data":"WA=="}}],"contexts":[{"name":"a","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{"token":"t"}}]}`
	for _, test := range []struct {
		config config.Config
		want   apiserver.Server
	}{
		{config.Config{APIServer: "https://api:6443", CA: []byte("X")}, apiserver.Server{URL: "https://api:6443", CA: []byte("X")}},
		{config.Config{Kubeconfig: []byte(data)}, apiserver.Server{URL: "https://embedded:6443", CA: []byte("X")}},
	} {
		if got, err := Server(&test.config); err != nil || !cmp.Equal(got, test.want) {
			t.Errorf("Server = %v, %v, want %v", got, err, test.want)
		}
	}
}

func TestReachable(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, test := range []struct {
		name  string
		have  string
		size  int64
		err   error
		after int64
		want  string
		waits bool
	}{
		{"there already", "built", 0, errors.New("not asked"), 0, "not needed: built", false},
		{"with size", "", 3 << 20, nil, 3 << 20, "can be fetched (3.0 MiB)", false},
		{"size unknown", "", -1, nil, -1, "can be fetched", false},
		{"refused", "", 0, refused, -1, "image x: dial: connection refused", true},
		{"busy", "", 0, &fetch.StatusError{Code: 503}, -1, "answered 503", true},
		{"not found", "", 0, &fetch.StatusError{Code: 404}, -1, "answered 404", false},
		{"its CA is not known", "", 0, x509.UnknownAuthorityError{}, -1, "trust the CA of that server", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			after, looks := int64(-2), 0
			c := Reachable(Download{
				Check: "oci-image-reachable", Target: "image x", Have: func() string { return test.have },
				Probe: func(context.Context) (int64, error) { looks++; return test.size, test.err },
				After: func(size int64, failed bool) []check.Result {
					after = size
					return []check.Result{check.Pass("", "%v", failed).As("disk-space")}
				},
			})
			// Whether waiting helps shows in whether another look is made.
			var results []check.Result
			synctest.Test(t, func(t *testing.T) {
				results = check.Run(t.Context(), []check.Check{c}, check.Plan{Limit: time.Second, Patience: 1500 * time.Millisecond})
			})
			if after != test.after || len(results) != 2 || !strings.Contains(results[0].String(), test.want) {
				t.Errorf("after %d: %v, want %d: %q", after, results, test.after, test.want)
			}
			if (looks > 1) != test.waits {
				t.Errorf("%d looks, waiting helps: %v", looks, test.waits)
			}
		})
	}
}

func TestArtifactsUnreachable(t *testing.T) {
	mirror := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(mirror.Close)
	sources := map[config.Artifact]config.Source{}
	for _, artifact := range []config.Artifact{config.Kubernetes, config.Containerd, config.Runc, config.CNI, config.Crictl} {
		sources[artifact] = config.Source{BaseURL: mirror.URL, Version: "1.2.3"}
	}
	got, text := said(Artifacts(&config.Config{Downloads: sources}, t.TempDir()).Look(t.Context()), "")
	names := map[string]bool{}
	for _, one := range got {
		names[one] = true
	}
	want := map[string]bool{"kubernetes-artifacts=error": true, "cri-artifacts=error": true, "cni-artifacts=error": true}
	if diff := cmp.Diff(want, names); diff != "" || !strings.Contains(text, "Downloads.Containerd") {
		t.Errorf("%s%s", diff, text)
	}
}
