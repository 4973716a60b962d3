//go:build host || fault

package fault

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"

	"unbounded/tests/host"
)

// apiServer is where kubelet's API server is.
const apiServer = "https://" + apiAddress

const apiAddress = host.OutsideIP + ":6443"

// guestID is the machine-id that the Node reports.
const guestID = "0123456789abcdef0123456789abcdef"

// issue makes a certificate.
func (a authority) issue(t *testing.T, subject pkix.Name) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject, IPAddresses: []net.IP{net.ParseIP(host.OutsideIP)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// kubeconfigOf is the kubeconfig of a kubelet that has joined.
func kubeconfigOf(t *testing.T, ca authority) string {
	t.Helper()
	cert, key := ca.issue(t, pkix.Name{CommonName: "system:node:m1", Organization: []string{"system:nodes"}})
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{
			"server": apiServer, "certificate-authority-data": []byte(pemOf("CERTIFICATE", ca.cert.Raw)),
		}}},
		"users": []any{map[string]any{"name": "u", "user": map[string]any{
			"client-certificate-data": []byte(pemOf("CERTIFICATE", cert.Raw)), "client-key-data": []byte(pemOf("EC PRIVATE KEY", der)),
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// serveNode is an API server with one Node, that of the machine.
func serveNode(t *testing.T, s *scene) {
	t.Helper()
	cert, key := s.ca.issue(t, pkix.Name{CommonName: "server"})
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}, MinVersion: tls.VersionTLS12},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"m1"},"status":{"nodeInfo":{"machineID":%q}}}`, guestID)
		}),
	}
	listener := s.Listen(t, apiAddress)
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
}
