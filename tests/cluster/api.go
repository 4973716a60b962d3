package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"unbounded/tests/host"
)

// api speaks to the API server as an administrator.
type api struct {
	client *http.Client
}

func newAPI(h *host.Host, ca *authority, admin pair) (*api, error) {
	certificate, err := tls.X509KeyPair(admin.certificate, admin.key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.parsed)
	return &api{client: &http.Client{Transport: &http.Transport{
		DialContext:     h.Dial,
		TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: roots},
	}}}, nil
}

// do sends a request and fails unless the server is content.
func (a *api) do(ctx context.Context, method, path string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, method, Server+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if response.StatusCode >= http.StatusBadRequest {
		err = errors.Join(err, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer))
	}
	return err
}

// awaitReady asks until the API server says that it is ready, or has ended.
func (a *api) awaitReady(ctx context.Context, ended <-chan struct{}) error {
	const pause = 50 * time.Millisecond
	for {
		err := a.do(ctx, http.MethodGet, "/readyz", nil)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the API server: %w", err)
		case <-ended:
			return errors.New("the API server has ended")
		case <-time.After(pause):
		}
	}
}

// admit makes the token and lets its bearers become nodes.
func (c *Cluster) admit(ctx context.Context, options Options) error {
	id, secret, _ := strings.Cut(c.Token, ".")
	token := map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
		"metadata": map[string]any{"name": "bootstrap-token-" + id, "namespace": "kube-system"},
		"stringData": map[string]string{
			"token-id": id, "token-secret": secret,
			"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
		},
	}
	if err := c.create(ctx, "/api/v1/namespaces/kube-system/secrets", token); err != nil {
		return err
	}
	const requests = "system:certificates.k8s.io:certificatesigningrequests:"
	bindings := map[string]string{
		"system:node-bootstrapper":  "system:bootstrappers",
		requests + "selfnodeclient": "system:nodes",
	}
	if !options.Manual {
		bindings[requests+"nodeclient"] = "system:bootstrappers"
	}
	for role, group := range bindings {
		if err := c.create(ctx, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding(role, group)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) create(ctx context.Context, path string, object any) error {
	encoded, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return c.api.do(ctx, http.MethodPost, path, encoded)
}

// binding gives a cluster role to a group.
func binding(role, group string) map[string]any {
	const rbac = "rbac.authorization.k8s.io"
	return map[string]any{
		"apiVersion": rbac + "/v1", "kind": "ClusterRoleBinding",
		"metadata": map[string]any{"name": "ground:" + role},
		"roleRef":  map[string]any{"apiGroup": rbac, "kind": "ClusterRole", "name": role},
		"subjects": []any{map[string]any{"apiGroup": rbac, "kind": "Group", "name": group}},
	}
}
