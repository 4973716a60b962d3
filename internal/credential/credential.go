// Package credential finds the credentials that a kubelet has got for itself, in the tree of its machine.
package credential

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"unbounded/internal/kubeconfig"
	"unbounded/internal/paths"
	"unbounded/internal/tree"
)

// pki is where kubelet keeps its certificates, inside the machine.
const pki = paths.Kubelet + "/pki"

// limit is the most that is read of a kubeconfig or certificate.
const limit = 1 << 20

// ErrNone says that kubelet has no credentials of its own, or not yet.
var ErrNone = errors.New("kubelet has no credentials of its own")

// Own are kubelet's own credentials, as opposed to those it was given to get them.
type Own struct {
	Kubeconfig []byte
	// Node is the name of the Node that the client certificate is for; empty when the
	// credential is not a certificate.
	Node string
}

// Find reads the credentials of the kubelet in the tree. The kubeconfig alone proves nothing:
// kubelet writes it before it asks for the certificate that it names. A certificate that has
// expired by now is none, as it is none to kubelet. Without credentials ErrNone is in
// the chain; any other error means that it cannot be told.
func Find(root *tree.Root, now time.Time) (Own, error) {
	data, err := root.ReadLinked(paths.Kubeconfig, limit)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(bytes.TrimSpace(data)) == 0 {
		return Own{}, ErrNone
	}
	if err != nil {
		return Own{}, err
	}
	k, err := kubeconfig.Parse(data)
	if err != nil {
		return Own{}, fmt.Errorf("%w: %s: %w", ErrNone, paths.Kubeconfig, err) // it may be in the middle of being written
	}
	certificate := k.ClientCert
	if k.ClientCertFile != "" {
		certificate, err = root.ReadLinked(k.ClientCertFile, limit)
		if errors.Is(err, fs.ErrNotExist) {
			return Own{}, ErrNone
		}
		if err != nil {
			return Own{}, err
		}
	} else if len(certificate) == 0 {
		return Own{Kubeconfig: data}, nil // a token or a program
	}
	leaf, err := first(certificate)
	switch {
	case err != nil:
		return Own{}, fmt.Errorf("%w: client certificate: %w", ErrNone, err)
	case now.After(leaf.NotAfter):
		return Own{}, fmt.Errorf("%w: its client certificate expired at %s", ErrNone, leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	node, _ := strings.CutPrefix(leaf.Subject.CommonName, "system:node:")
	return Own{data, node}, nil
}

// first is the first certificate of a PEM file that may hold the key too.
func first(data []byte) (*x509.Certificate, error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return nil, errors.New("no certificate in the file")
		}
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
}

// Watch tells when Find may have another answer.
type Watch struct {
	C     <-chan struct{}
	watch *tree.Watch
}

// Changes returns a watch that ends with ctx.
func Changes(ctx context.Context, root *tree.Root) (*Watch, error) {
	watch, err := root.Watch(ctx)
	if err != nil {
		return nil, err
	}
	return &Watch{watch.C, watch}, nil
}

// Refresh watches the folders that have come into being. Call it after each event, and
// before Find: what appears between the two is an event then.
func (w *Watch) Refresh() error {
	for _, folder := range []string{path.Dir(paths.Kubeconfig), pki} {
		if err := w.watch.Add(folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
