// Package cluster runs a real control plane beside a host under test: etcd,
// kube-apiserver and kube-controller-manager, at host.OutsideIP, where the host
// finds them as it would in a network. Like the host they are gone with the test.
package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"unbounded/tests/host"
)

// Server is the address of the API.
const Server = "https://" + host.OutsideIP + ":6443"

// ServiceDNS is the cluster DNS address that nodes are told; nobody answers there.
const ServiceDNS = "10.96.0.10"

// Options choose a cluster. The zero value approves nodes that come with Token.
type Options struct {
	Manual bool // certificate requests of new nodes wait for Kubectl "certificate approve"
}

// Cluster is a running control plane.
type Cluster struct {
	CA         []byte // PEM
	Token      string // of a node that joins; its secret begins with "canary"
	Version    string // of Kubernetes, with the "v"
	Kubeconfig string // a file on this machine, of an administrator

	host     *host.Host
	dir      string
	binaries string
	ca       *authority
	api      *api
	server   *process
}

// startLimit bounds the start of the control plane, on a machine that does more.
const startLimit = 2 * time.Minute

// Start runs a control plane beside a host, which may be off.
func Start(t host.T, h *host.Host, options Options) *Cluster {
	t.Helper()
	c, err := start(t, h, options)
	if err != nil {
		t.Fatalf("start the cluster: %v", err)
	}
	return c
}

func start(t host.T, h *host.Host, options Options) (*Cluster, error) {
	binaries, err := host.Artefact("kube")
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		Token:    newToken(),
		host:     h,
		dir:      filepath.Join(h.Dir, "cluster"),
		binaries: binaries,
	}
	if c.Version, err = host.ArtefactVersion("kube", "kubernetes"); err != nil {
		return nil, err
	}
	c.Kubeconfig = filepath.Join(c.dir, "admin.kubeconfig")
	if err := c.writeFiles(); err != nil {
		return nil, err
	}
	if _, err := c.run(t, "etcd", etcdFlags(c.dir)); err != nil {
		return nil, err
	}
	if err := c.startServer(t); err != nil {
		return nil, err
	}
	// Not before: it gives up after ten seconds without an API.
	if _, err := c.run(t, "kube-controller-manager", controllerFlags(c.dir)); err != nil {
		return nil, err
	}
	return c, c.admit(t.Context(), options)
}

// newToken makes a bootstrap token that no other text contains.
func newToken() string {
	secret := make([]byte, 5)
	_, _ = rand.Read(secret) // never fails
	return "joiner.canary" + hex.EncodeToString(secret)
}

// writeFiles makes the certificates and what refers to them.
func (c *Cluster) writeFiles() error {
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return err
	}
	ca, err := newAuthority("kubernetes")
	if err != nil {
		return err
	}
	c.CA, c.ca = ca.certificate, ca
	server, serverErr := ca.server([]string{"kubernetes", "kubernetes.default.svc"}, host.OutsideIP, "127.0.0.1", "10.96.0.1")
	admin, adminErr := ca.client("admin", "system:masters")
	_, accounts, accountsErr := newKey()
	if err := errors.Join(serverErr, adminErr, accountsErr); err != nil {
		return err
	}
	if c.api, err = newAPI(c.host, ca, admin); err != nil {
		return err
	}
	kubeconfig, err := json.Marshal(adminKubeconfig(ca, admin))
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"ca.crt": ca.certificate, "ca.key": ca.key,
		"server.crt": server.certificate, "server.key": server.key,
		"admin.crt": admin.certificate, "admin.key": admin.key,
		"accounts.key": accounts, "admin.kubeconfig": kubeconfig,
	} {
		if err := os.WriteFile(filepath.Join(c.dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Credential is a certificate with its key, PEM, by which the API knows a user and its groups.
func (c *Cluster) Credential(t host.T, user string, groups ...string) []byte {
	t.Helper()
	p, err := c.ca.client(user, groups...)
	if err != nil {
		t.Fatalf("issue a certificate for %s: %v", user, err)
	}
	return append(p.certificate, p.key...)
}

// adminKubeconfig is the kubeconfig of an administrator, also of the controllers.
func adminKubeconfig(ca *authority, admin pair) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "admin",
		"clusters": []any{map[string]any{"name": "cluster", "cluster": map[string]any{
			"server": Server, "certificate-authority-data": ca.certificate,
		}}},
		"users": []any{map[string]any{"name": "admin", "user": map[string]any{
			"client-certificate-data": admin.certificate, "client-key-data": admin.key,
		}}},
		"contexts": []any{map[string]any{"name": "admin", "context": map[string]any{
			"cluster": "cluster", "user": "admin",
		}}},
	}
}

func etcdFlags(dir string) []string {
	return []string{
		"--data-dir=" + filepath.Join(dir, "etcd"),
		// The data lives no longer than the test.
		"--unsafe-no-fsync",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
	}
}

func serverFlags(dir string) []string {
	file := func(name string) string { return filepath.Join(dir, name) }
	return []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address=" + host.OutsideIP,
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC",
		"--enable-bootstrap-token-auth=true",
		"--client-ca-file=" + file("ca.crt"),
		"--tls-cert-file=" + file("server.crt"), "--tls-private-key-file=" + file("server.key"),
		"--kubelet-client-certificate=" + file("admin.crt"), "--kubelet-client-key=" + file("admin.key"),
		"--service-account-issuer=" + Server,
		"--service-account-key-file=" + file("accounts.key"),
		"--service-account-signing-key-file=" + file("accounts.key"),
	}
}

func controllerFlags(dir string) []string {
	file := func(name string) string { return filepath.Join(dir, name) }
	return []string{
		"--kubeconfig=" + file("admin.kubeconfig"),
		"--controllers=csrsigning,csrapproving,csrcleaner,bootstrapsigner,nodelifecycle,serviceaccount,root-ca-cert-publisher",
		"--cluster-signing-cert-file=" + file("ca.crt"), "--cluster-signing-key-file=" + file("ca.key"),
		"--root-ca-file=" + file("ca.crt"),
		"--leader-elect=false",
	}
}

// process is a part of the control plane.
type process struct {
	kill  context.CancelFunc
	ended chan struct{}
}

func (p *process) stop() { p.kill(); <-p.ended }

// run starts a part of the control plane; what it says goes to a file beside.
func (c *Cluster) run(t host.T, name string, flags []string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	ctx, kill := context.WithCancel(context.WithoutCancel(t.Context()))
	command := c.host.Outside(ctx, append([]string{filepath.Join(c.binaries, "control", name)}, flags...)...)
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		kill()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{kill: kill, ended: make(chan struct{})}
	go func() { _ = command.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		if text := complaints(log.Name()); t.Failed() && text != "" {
			t.Logf("%s complains last:\n%s", name, text)
		}
		p.stop()
	})
	return p, nil
}

// complaints are the last errors in a log of klog's form.
func complaints(name string) string {
	const enough = 12
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.ContainsAny(line[:1], "EF") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-enough):], "")
}

// StopAPI ends the API server, as an outage. StartAPI brings it back.
func (c *Cluster) StopAPI() { c.server.stop() }

// StartAPI starts the API server again and waits until it is ready.
func (c *Cluster) StartAPI(t host.T) {
	t.Helper()
	if err := c.startServer(t); err != nil {
		t.Fatalf("start the API: %v", err)
	}
}

func (c *Cluster) startServer(t host.T) error {
	server, err := c.run(t, "kube-apiserver", serverFlags(c.dir))
	if err != nil {
		return err
	}
	c.server = server
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	return c.api.awaitReady(ctx, server.ended)
}

// Kubectl runs kubectl as an administrator; it has to succeed.
func (c *Cluster) Kubectl(t host.T, args ...string) string {
	t.Helper()
	out, err := c.TryKubectl(t.Context(), args...)
	if err != nil {
		t.Fatalf("kubectl %q: %v", args, err)
	}
	return out
}

// TryKubectl is Kubectl that may fail.
func (c *Cluster) TryKubectl(ctx context.Context, args ...string) (string, error) {
	program := filepath.Join(c.binaries, "node/kubectl")
	command := c.host.Outside(ctx, append([]string{program, "--kubeconfig=" + c.Kubeconfig}, args...)...)
	out, err := command.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return string(out), err
}

// DoubtReady takes back that a node is Ready, while its host is off: the API server remembers it for most of
// a minute. After it AwaitReady waits for kubelet's own word.
func (c *Cluster) DoubtReady(t host.T, node string) {
	t.Helper()
	c.Kubectl(t, "patch", "node", node, "--subresource=status",
		"--patch", `{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`)
}

// AwaitReady waits until a node is Ready and tells how long that took.
func (c *Cluster) AwaitReady(t host.T, node string, limit time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	c.Kubectl(t, "wait", "--for=create", "node/"+node, "--timeout="+limit.String())
	c.Kubectl(t, "wait", "--for=condition=Ready", "node/"+node, "--timeout="+limit.String())
	return time.Since(began)
}
