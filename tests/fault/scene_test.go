//go:build host || fault

package fault

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"math/big"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

// authority is a certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a := authority{key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// configuration is one that passes every check. Its images and downloads are those of serveTiny.
func configuration(t *testing.T, ca authority) string {
	t.Helper()
	data, err := json.Marshal(map[string]any{
		"MachineName": "m1",
		"Cluster": map[string]any{
			"Version": "v1.37.2", "ClusterDNS": "10.96.0.10",
			"CaCertBase64": base64.StdEncoding.EncodeToString([]byte(pemOf("CERTIFICATE", ca.cert.Raw))),
		},
		"Kubelet": map[string]any{
			"ApiServer": apiServer, "Auth": map[string]any{"BootstrapToken": "abcdef." + canary + "0123456789"},
		},
		"OCIImage":  tinyImage,
		"Downloads": tinyDownloads(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// newScene boots a host that is admitted.
func newScene(t *testing.T, more map[string]host.File, args ...string) *scene {
	t.Helper()
	ca := newAuthority(t)
	overlay := operator()
	overlay[paths.Config] = host.File{Content: configuration(t, ca), Mode: 0o600}
	overlay[injectPath] = host.File{Content: injector(t), Mode: 0o755}
	maps.Copy(overlay, more)
	s := &scene{
		ca:   ca,
		Host: host.Boot(t, host.Options{Overlay: overlay, Args: args}),
		all:  []string{"/etc", "/var/lib/unbounded", "/var/lib/machines", "/run/unbounded", "/usr/local"},
	}
	s.MustRun(t, program("admission")+" admit")
	var err error
	if s.base, err = s.world(s.all).take(); err != nil {
		t.Fatal(err)
	}
	return s
}

// plain runs a helper as a part of a row's setup.
func (s *scene) plain(t *testing.T, helper string, args ...string) {
	t.Helper()
	if got := s.run(t, append([]string{program(helper)}, args...)); got.Exit != 0 {
		t.Fatalf("%s %q: exit %d: %s", helper, args, got.Exit, got.output)
	}
}

// phase changes the phase of the record.
func (s *scene) phase(t *testing.T, phase string) {
	t.Helper()
	s.MustRun(t, `sed -i 's/"phase": "[a-z]*"/"phase": "`+phase+`"/' `+paths.Record)
}
