package credential

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/internal/tree"
)

// pair is a client certificate with its key, as kubelet stores them.
func pair(t *testing.T, name string, until time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})) +
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func shape(user string) string {
	return `apiVersion: v1
kind: Config
current-context: default-context
clusters: [{name: c, cluster: {server: "https://api.example.test:6443"}}]
contexts: [{name: default-context, context: {cluster: c, user: default-auth}}]
users:
- name: default-auth
  user: ` + user + "\n"
}

const (
	current = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	stored  = "/var/lib/kubelet/pki/kubelet-client-2026-01-02.pem"
	named   = "{client-certificate: " + current + ", client-key: " + current + "}"
)

func put(t *testing.T, dir, name, content string) {
	t.Helper()
	name = filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFind(t *testing.T) {
	now := time.Now()
	valid, expired := pair(t, "system:node:n", now.Add(time.Hour)), pair(t, "system:node:n", now.Add(-time.Hour))
	for _, test := range []struct {
		name       string
		kubeconfig string
		stored     string
		link       string
		want       string // node
		none       bool
	}{
		{"nothing", "", "", "", "", true},
		{"kubeconfig before the certificate", shape(named), "", "", "", true},
		{"joined, absolute link", shape(named), valid, stored, "n", false},
		{"joined, relative link", shape(named), valid, filepath.Base(stored), "n", false},
		{"half a kubeconfig", shape(named)[:60], valid, stored, "", true},
		{"expired", shape(named), expired, stored, "", true},
		{"key without certificate", shape(named), valid[:strings.Index(valid, "-----BEGIN CERTIFICATE")], stored, "", true},
		{"embedded token", shape("{token: secret}"), "", "", "", false},
		{"embedded program", shape("{exec: {command: /bin/login}}"), "", "", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if test.kubeconfig != "" {
				put(t, dir, paths.Kubeconfig, test.kubeconfig)
			}
			if test.stored != "" {
				put(t, dir, stored, test.stored)
			}
			if test.link != "" {
				if err := os.Symlink(test.link, filepath.Join(dir, current)); err != nil {
					t.Fatal(err)
				}
			}
			root, err := tree.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			own, err := Find(root, now)
			if errors.Is(err, ErrNone) != test.none || err != nil && !test.none || own.Node != test.want {
				t.Errorf("Find = %q, %v, want %q, none %v", own.Node, err, test.want, test.none)
			}
			if err == nil && string(own.Kubeconfig) != test.kubeconfig {
				t.Errorf("Find: kubeconfig %q", own.Kubeconfig)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("Find: more than one line: %v", err)
			}
		})
	}
}

// TestChanges plays kubelet's part: the wait ends with the event of the link to the certificate.
func TestChanges(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "/var/lib/kubelet/config.yaml", "")
	root, err := tree.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	watch, err := Changes(ctx, root)
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Refresh(); err != nil {
		t.Fatal(err)
	}
	valid := pair(t, "system:node:n", time.Now().Add(time.Hour))
	go func() {
		put(t, dir, paths.Kubeconfig, shape(named))
		put(t, dir, stored, valid)
		if err := os.Symlink(stored, filepath.Join(dir, current)); err != nil {
			t.Error(err)
		}
	}()
	for {
		if err := watch.Refresh(); err != nil {
			t.Fatal(err)
		}
		own, err := Find(root, time.Now())
		if err == nil && own.Node == "n" {
			return
		}
		select {
		case <-watch.C:
		case <-ctx.Done():
			t.Fatalf("no event: %v", err)
		}
	}
}
