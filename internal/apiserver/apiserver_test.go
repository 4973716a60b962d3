package apiserver

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
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// certificate makes a self-signed one for host, valid from to.
func certificate(t *testing.T, host string, from, to time.Time) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// serve starts an API server that answers status at the time given by ahead of now.
func serve(t *testing.T, cert tls.Certificate, status int, ahead time.Duration) string {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || r.Header.Get("Authorization") != "" {
			status = http.StatusTeapot
		}
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		w.WriteHeader(status)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

func TestReadyz(t *testing.T) {
	now := time.Now()
	good, ca := certificate(t, "127.0.0.1", now.Add(-time.Hour), now.Add(time.Hour))
	_, otherCA := certificate(t, "127.0.0.1", now.Add(-time.Hour), now.Add(time.Hour))
	wrongName, wrongNameCA := certificate(t, "api.example.test", now.Add(-time.Hour), now.Add(time.Hour))
	expired, expiredCA := certificate(t, "127.0.0.1", now.Add(-2*time.Hour), now.Add(-time.Hour))

	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })

	for _, test := range []struct {
		name   string
		server string
		ca     []byte
		want   Kind
		status int
	}{
		{"ready", serve(t, good, 200, 0), ca, Unknown, 200},
		{"slash at the end", serve(t, good, 200, 0) + "/", ca, Unknown, 200},
		{"anonymous forbidden is there", serve(t, good, 403, 0), ca, Unknown, 403},
		{"anonymous off is there", serve(t, good, 401, 0), ca, Unknown, 401},
		{"not up", serve(t, good, 500, 0), ca, Unreachable, 500},
		{"another CA", serve(t, good, 200, 0), otherCA, Untrusted, 0},
		{"no CA", serve(t, good, 200, 0), []byte("x"), Untrusted, 0},
		{"the CAs of this host", serve(t, good, 200, 0), nil, Untrusted, 0},
		{"another name", serve(t, wrongName, 200, 0), wrongNameCA, Untrusted, 0},
		{"expired", serve(t, expired, 200, 0), expiredCA, Untrusted, 0},
		{"not TLS", strings.Replace(plain.URL, "http:", "https:", 1), ca, Unreachable, 0},
		{"refused", strings.Replace(closed.URL, "http:", "https:", 1), ca, Unreachable, 0},
		{"no such name", "https://api.invalid:6443", ca, Unreachable, 0},
		{"silent", "https://" + silent.Addr().String(), ca, Unreachable, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			answer, err := Server{URL: test.server, CA: test.ca}.Readyz(ctx)
			if got := KindOf(err); got != test.want || answer.Status != test.status {
				t.Errorf("Readyz = %d, kind %d (%v), want %d, kind %d", answer.Status, got, err, test.status, test.want)
			}
			if _, ok := errors.AsType[*Error](err); err != nil && !ok {
				t.Errorf("Readyz: %T, want *Error", err)
			}
			if got, want := OutOfDate(err), test.name == "expired"; got != want {
				t.Errorf("OutOfDate(%v) = %v, want %v", err, got, want)
			}
		})
	}
}

func TestClock(t *testing.T) {
	cert, ca := certificate(t, "127.0.0.1", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	for _, ahead := range []time.Duration{0, 10 * time.Minute, -90 * time.Second} {
		server := serve(t, cert, 200, ahead)
		answer, err := Server{URL: server, CA: ca}.Readyz(t.Context())
		if err != nil || !answer.Known {
			t.Fatalf("Readyz: %v, known %v", err, answer.Known)
		}
		if off := (answer.Skew + ahead).Abs(); off > 2*time.Second {
			t.Errorf("server %v ahead: skew = %v", ahead, answer.Skew)
		}
		if skew, known := (Server{URL: server}).Clock(t.Context()); !known || (skew+ahead).Abs() > 2*time.Second {
			t.Errorf("server %v ahead: Clock = %v, %v", ahead, skew, known)
		}
	}
	if _, known := (Server{URL: "https://api.invalid:6443"}).Clock(t.Context()); known {
		t.Error("Clock of an absent server is known")
	}
}

func TestSkew(t *testing.T) {
	date := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		name         string
		began, ended time.Duration // after date
		want         time.Duration
	}{
		{"same second", 200 * time.Millisecond, 300 * time.Millisecond, 0},
		{"slow answer around it", -20 * time.Second, 20 * time.Second, 0},
		{"ahead", 11 * time.Second, 12 * time.Second, 10 * time.Second},
		{"behind", -12 * time.Second, -10 * time.Second, -10 * time.Second},
	} {
		if got := skew(date.Add(test.began), date.Add(test.ended), date); got != test.want {
			t.Errorf("%s: skew = %v, want %v", test.name, got, test.want)
		}
	}
}

func TestKindOf(t *testing.T) {
	for _, test := range []struct {
		err  error
		want Kind
	}{
		{nil, Unknown},
		{errors.New("something"), Unknown},
		{fmt.Errorf("get node: %w", &Error{Forbidden, "https://a", errors.New("no")}), Forbidden},
		{context.DeadlineExceeded, Unreachable},
		{fmt.Errorf("x: %w", x509.UnknownAuthorityError{}), Untrusted},
		{&net.DNSError{}, Unreachable},
	} {
		if got := KindOf(test.err); got != test.want {
			t.Errorf("KindOf(%v) = %d, want %d", test.err, got, test.want)
		}
	}
}
