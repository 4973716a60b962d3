package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"unbounded/internal/apiserver"
)

const token = "abcdef.0123456789abcdef"

// serve starts an API server and returns a client with the token of the tests.
func serve(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	client, err := withToken(server.URL, authority(server.Certificate()), token)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func authority(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}

func answer(status int, reason string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"said the server","code":%d}`, reason, status)
	}
}

const node = `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"},"status":{"conditions":[]}}`

func TestHasNode(t *testing.T) {
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		want    bool
		kind    apiserver.Kind
	}{
		{"there", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/api/v1/nodes/n" || r.Header.Get("Authorization") != "Bearer "+token {
				w.WriteHeader(http.StatusTeapot)
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, node)
		}, true, apiserver.Unknown},
		{"not there", answer(404, "NotFound"), false, apiserver.Unknown},
		{"unauthorized", answer(401, "Unauthorized"), false, apiserver.Rejected},
		{"forbidden", answer(403, "Forbidden"), false, apiserver.Forbidden},
		{"broken", answer(500, "InternalError"), false, apiserver.Unreachable},
		{"proxy without an upstream", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }, false, apiserver.Unreachable},
		{"unauthorized in plain text", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) }, false, apiserver.Rejected},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := serve(t, test.handler).HasNode(t.Context(), "n")
			if got != test.want || apiserver.KindOf(err) != test.kind || (err != nil) != (test.kind != apiserver.Unknown) {
				t.Errorf("HasNode = %v, %v (kind %d), want %v, kind %d", got, err, apiserver.KindOf(err), test.want, test.kind)
			}
			if err != nil && strings.Contains(err.Error(), token) {
				t.Errorf("error shows the token: %v", err)
			}
		})
	}
}

// A Node that an earlier installation left behind is not the node that is waited for.
func TestNodeOfAnotherMachine(t *testing.T) {
	of := func(machine string) string {
		return `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"},"status":{"nodeInfo":{"machineID":"` + machine + `"}}}`
	}
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.FormValue("watch") == "" {
			_, _ = io.WriteString(w, of("earlier"))
			return
		}
		_, _ = io.WriteString(w, `{"type":"ADDED","object":`+of("earlier")+`}`+"\n"+`{"type":"MODIFIED","object":`+of("ours")+`}`+"\n")
	})
	for machine, want := range map[string]bool{"": true, "earlier": true, "ours": false} {
		client.Machine = machine
		if got, err := client.HasNode(t.Context(), "n"); got != want || err != nil {
			t.Errorf("HasNode of machine %q = %v, %v, want %v", machine, got, err, want)
		}
	}
	client.Machine = "ours"
	if err := client.AwaitNode(t.Context(), "n"); err != nil {
		t.Errorf("AwaitNode = %v, want the event in which the machine is ours", err)
	}
	client.Machine = "nobody's"
	if err := client.AwaitNode(t.Context(), "n"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("AwaitNode = %v, want the end of the watch", err)
	}
}

func TestUnreachableAndUntrusted(t *testing.T) {
	server := httptest.NewUnstartedServer(answer(404, "NotFound"))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	other, key := selfSigned(t, "other")
	client, err := withToken(server.URL, other, token)
	if err != nil {
		t.Fatal(err)
	}
	_ = key
	if _, err := client.HasNode(t.Context(), "n"); apiserver.KindOf(err) != apiserver.Untrusted {
		t.Errorf("another CA: %v, kind %d", err, apiserver.KindOf(err))
	}
	server.Close()
	if _, err := client.HasNode(t.Context(), "n"); apiserver.KindOf(err) != apiserver.Unreachable {
		t.Errorf("refused: %v, kind %d", err, apiserver.KindOf(err))
	}
	if err := client.AwaitNode(t.Context(), "n"); apiserver.KindOf(err) != apiserver.Unreachable {
		t.Errorf("watch, refused: %v, kind %d", err, apiserver.KindOf(err))
	}
}

func TestAwaitNode(t *testing.T) {
	events := func(lines ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("watch") != "true" || r.FormValue("fieldSelector") != "metadata.name=n" {
				w.WriteHeader(http.StatusTeapot)
			}
			w.Header().Set("Content-Type", "application/json")
			for _, line := range lines {
				_, _ = io.WriteString(w, line+"\n")
				w.(http.Flusher).Flush()
			}
			if len(lines) == 0 {
				w.WriteHeader(http.StatusOK)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}
		}
	}
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		want    error
		kind    apiserver.Kind
	}{
		{"added", events(`{"type":"ADDED","object":` + node + `}`), nil, apiserver.Unknown},
		{"deleted, then added", events(`{"type":"DELETED","object":`+node+`}`, `{"type":"ADDED","object":`+node+`}`), nil, apiserver.Unknown},
		{"closed", events(`{"type":"DELETED","object":` + node + `}`), io.ErrUnexpectedEOF, apiserver.Unreachable},
		{"error", events(`{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"Unauthorized","code":401}}`), nil, apiserver.Rejected},
		{"forbidden", answer(403, "Forbidden"), nil, apiserver.Forbidden},
		{"our time is over", events(), context.DeadlineExceeded, apiserver.Unreachable},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := serve(t, test.handler).AwaitNode(ctx, "n")
			if apiserver.KindOf(err) != test.kind || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("AwaitNode = %v (kind %d), want %v, kind %d", err, apiserver.KindOf(err), test.want, test.kind)
			}
		})
	}
}

func TestRequests(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	asked := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	item := func(name string, age time.Duration, request, certificate []byte, conditions ...map[string]string) map[string]any {
		return map[string]any{
			"metadata": map[string]any{"name": name, "creationTimestamp": began.Add(-age)},
			"spec":     map[string]any{"request": request, "username": "system:bootstrap:abcdef"},
			"status":   map[string]any{"certificate": certificate, "conditions": conditions},
		}
	}
	approved := map[string]string{"type": "Approved", "reason": "AutoApproved"}
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("fieldSelector") != "spec.signerName=kubernetes.io/kube-apiserver-client-kubelet" {
			w.WriteHeader(http.StatusTeapot)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "CertificateSigningRequestList", "items": []any{
			item("old", time.Hour, asked, []byte("PEM"), approved),
			item("new", 0, asked, nil),
			item("denied", time.Minute, []byte("x"), nil, map[string]string{"type": "Denied", "message": "not wanted"}),
			item("approved", 2*time.Minute, asked, nil, approved),
			item("failed", 3*time.Minute, asked, nil, approved, map[string]string{"type": "Failed", "reason": "SignerValidationFailure"}),
		}})
	})
	got, err := client.Requests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const user, subject = "system:bootstrap:abcdef", "system:node:n"
	want := []Request{
		{"new", user, subject, began, Pending, ""},
		{"denied", user, "", began.Add(-time.Minute), Denied, "not wanted"},
		{"approved", user, subject, began.Add(-2 * time.Minute), Approved, "AutoApproved"},
		{"failed", user, subject, began.Add(-3 * time.Minute), Failed, "SignerValidationFailure"},
		{"old", user, subject, began.Add(-time.Hour), Issued, "AutoApproved"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := serve(t, answer(403, "Forbidden")).Requests(t.Context()); apiserver.KindOf(err) != apiserver.Forbidden {
		t.Errorf("Requests: %v, want forbidden", err)
	}
}

func selfSigned(t *testing.T, name string) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func TestFromKubeconfig(t *testing.T) {
	var user string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 {
			user = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		answer(404, "NotFound")(w, r)
	}))
	t.Cleanup(server.Close)
	server.TLS.ClientAuth = 1 // tls.RequestClientCert
	certificate, key := selfSigned(t, "system:node:n")
	files := map[string][]byte{"/etc/ca.crt": authority(server.Certificate()), "/pki/current.pem": append(certificate, key...)}
	read := func(path string) ([]byte, error) {
		data, ok := files[path]
		if !ok {
			return nil, fmt.Errorf("%s is not there", path)
		}
		return data, nil
	}
	shape := func(user string) []byte {
		return []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + server.URL +
			`","certificate-authority":"/etc/ca.crt"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":` + user + `}]}`)
	}
	client, err := FromKubeconfig(shape(`{"client-certificate":"/pki/current.pem","client-key":"/pki/current.pem"}`), read, "test")
	if err != nil {
		t.Fatal(err)
	}
	if there, err := client.HasNode(t.Context(), "n"); there || err != nil || user != "system:node:n" {
		t.Errorf("HasNode = %v, %v as %q", there, err, user)
	}
	for name, data := range map[string][]byte{
		"exec":       shape(`{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"/bin/login","interactiveMode":"Never"}}`),
		"token file": shape(`{"tokenFile":"/run/token"}`),
	} {
		if _, err := FromKubeconfig(data, read, "test"); !errors.Is(err, ErrForeignCredential) {
			t.Errorf("%s: %v, want ErrForeignCredential", name, err)
		}
	}
	for name, data := range map[string][]byte{
		"not YAML": []byte("\t"), "missing file": shape(`{"client-certificate":"/absent","client-key":"/absent"}`), "empty": nil,
	} {
		if _, err := FromKubeconfig(data, read, "test"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// withToken returns the client of server, whose certificate must be signed by a CA of pem.
func withToken(server string, pem []byte, token string) (*Client, error) {
	return open(&rest.Config{Host: server, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: pem}}, "test")
}
