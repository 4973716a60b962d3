//go:build host

// Package preflight tests unbounded-preflight on booted hosts: what it finds, that it waits, and that it changes nothing.
package preflight

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/paths"
	"unbounded/tests/host"
	"unbounded/tests/serve"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

const (
	program = paths.DefaultRoot + "/current/unbounded-preflight"
	apiAt   = host.OutsideIP + ":6443"
	canary  = "c4n4ry.0123456789abcdef"
)

// api is a server that answers /readyz, with a certificate of its own.
type api struct {
	ca     []byte
	server *http.Server
}

func newAPI(t *testing.T) *api {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.ParseIP(host.OutsideIP)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	return &api{
		ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		server: &http.Server{
			Handler: ok, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
			TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		},
	}
}

func (a *api) start(t *testing.T, h *host.Host) {
	t.Helper()
	listener := h.Listen(t, apiAt)
	go func() { _ = a.server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = a.server.Close() })
}

// configure writes a configuration that is right, with changes by dotted key.
func configure(t *testing.T, h *host.Host, a *api, change func(map[string]any)) {
	t.Helper()
	source := func(part string) map[string]any {
		version, err := host.ArtefactVersion("mirror", part)
		if err != nil {
			t.Fatal(err)
		}
		return map[string]any{"BaseURL": "http://" + serve.MirrorAddress + "/" + part, "Version": version}
	}
	version, err := host.ArtefactVersion("mirror", "kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	config := map[string]any{
		"MachineName": "node-1",
		"Cluster":     map[string]any{"CaCertBase64": base64.StdEncoding.EncodeToString(a.ca), "ClusterDNS": "10.96.0.10", "Version": version},
		"Kubelet": map[string]any{
			"ApiServer": "https://" + apiAt, "Auth": map[string]any{"BootstrapToken": canary},
			"Configuration": map[string]any{"cgroupsPerQOS": false, "enforceNodeAllocatable": []any{}},
		},
		"OCIImage": serve.NodeImage,
		"Downloads": map[string]any{
			"Kubernetes": map[string]any{"BaseURL": "http://" + serve.MirrorAddress + "/kubernetes"},
			"Containerd": source("containerd"), "Runc": source("runc"), "CNI": source("cni"), "Crictl": source("crictl"),
		},
	}
	if change != nil {
		change(config)
	}
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	h.WriteFile(t, paths.Config, host.File{Content: string(data), Mode: 0o600})
}

type report struct {
	Status string
	Checks []struct {
		Name, Target, Severity, Message, Remedy string
		Ignored                                 bool
	}
	Summary struct{ OK, Warnings, Errors int }
}

// check runs the program by hand and returns its exit status and report.
func check(t *testing.T, h *host.Host, args string) (int, report) {
	t.Helper()
	result := h.Run(t, program+" check --output json "+args)
	var r report
	if err := json.Unmarshal([]byte(result.Out), &r); err != nil {
		t.Fatalf("check %s = %d: %v\n%s%s", args, result.Code, err, result.Out, result.Err)
	}
	if strings.Contains(result.Out+result.Err, canary) {
		t.Errorf("check %s shows the token", args)
	}
	return result.Code, r
}

// of is what the report says under a name, a line for each result.
func (r report) of(name string) string {
	var text strings.Builder
	for _, c := range r.Checks {
		if c.Name == name {
			text.WriteString(c.Severity + ": " + c.Message + " (" + c.Remedy + ")\n")
		}
	}
	return text.String()
}

func (r report) want(t *testing.T, name string, parts ...string) {
	t.Helper()
	text := r.of(name)
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: %q, want %q in it", name, text, part)
		}
	}
}

func releases(t *testing.T, test func(t *testing.T, release string)) {
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) { test(t, release) })
	}
}

// TestCheck: by hand, on a host in many states; nothing of the host ever changes.
func TestCheck(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		h := host.Boot(t, host.Options{Release: release})
		a := newAPI(t)
		a.start(t, h)
		serve.Registry(t, h)
		serve.Mirror(t, h)
		configure(t, h, a, nil)
		before := h.Tree(t, host.TreeOptions{Exclude: host.Noise})

		code, r := check(t, h, "")
		if code != 0 || r.Status != "ok" || r.Summary.Errors != 0 {
			t.Errorf("check of a good host = %d: %+v", code, r)
		}
		for _, name := range []string{
			"is-privileged-user", "existing-deployment", "agent-config", "cluster-credentials", "host-os-configuration", "nspawn-runtime",
			"host-packages", "docker-active", "containerd-active", "kubelet-active", "swap-active", "disk-space", "executable-paths", "cgroups",
			"kubelet-bind-address", "containerd-metrics-bind-address", "api-server-reachable", "clock-skew", "oci-image-reachable",
			"kubernetes-artifacts", "cri-artifacts", "cni-artifacts", "nspawn-machine-provisioning", "machine-id",
		} {
			if r.of(name) == "" {
				t.Errorf("no result of %s", name)
			}
		}
		if result := h.Run(t, program+" check"); result.Code != 0 || !strings.Contains(result.Out, "[preflight]") {
			t.Errorf("check = %d\n%s", result.Code, result.Out)
		}
		h.MustRun(t, "install -m 0644 "+paths.Config+" /run/readable.json")
		if result := h.Run(t, "setpriv --reuid 1000 --regid 1000 --clear-groups "+program+" check --config /run/readable.json"); result.Code == 0 || !strings.Contains(result.Out, "is-privileged-user") {
			t.Errorf("check as a user = %d\n%s%s", result.Code, result.Out, result.Err)
		}

		t.Run("listeners", func(t *testing.T) { listeners(t, h) })
		t.Run("mounts", func(t *testing.T) { mounts(t, h) })
		t.Run("units", func(t *testing.T) { activeUnits(t, h) })
		t.Run("ignore", func(t *testing.T) { ignore(t, h) })

		if diff := cmp.Diff(before, h.Tree(t, host.TreeOptions{Exclude: host.Noise})); diff != "" {
			t.Errorf("the host changed:\n%s", diff)
		}

		t.Run("existing deployment", func(t *testing.T) {
			h.MustRun(t, "mkdir -p "+paths.Tree("kube1"))
			code, r := check(t, h, "")
			if code != 78 {
				t.Errorf("check = %d, want 78", code)
			}
			r.want(t, "existing-deployment", "error", paths.Tree("kube1"), "unbounded-reset.target")
		})
		t.Run("configuration", func(t *testing.T) {
			configure(t, h, a, func(c map[string]any) {
				c["OCIImage"] = "http://example.test/x"
				c["Cluster"].(map[string]any)["ClusterDNS"] = "dns"
			})
			code, r := check(t, h, "")
			if code != 78 {
				t.Errorf("check = %d, want 78", code)
			}
			r.want(t, "agent-config", "OCIImage", "Cluster.ClusterDNS")
		})
	})
}

func listeners(t *testing.T, h *host.Host) {
	h.MustRun(t, "systemd-run --quiet --unit=squatter systemd-socket-activate -l 10257 /bin/cat")
	h.Await(t, time.Minute, "ss -tln | grep -q :10257")
	outside := h.ListenInside(t, "[::1]:10250") // its process is in no /proc of the host
	code, r := check(t, h, "")
	if code != 1 {
		t.Errorf("check = %d, want 1", code)
	}
	pid := strings.TrimSpace(h.MustRun(t, "systemctl show -P MainPID squatter"))
	r.want(t, "containerd-metrics-bind-address", "error", "[::]:10257", "pid "+pid, "systemd-socket-activate", "squatter.service")
	r.want(t, "kubelet-bind-address", "error", "[::1]:10250", "process cannot be found")
	h.MustRun(t, "systemctl stop squatter")
	_ = outside.Close()
}

func mounts(t *testing.T, h *host.Host) {
	// The program has to run, so not all of the prefix.
	h.MustRun(t, "mount --bind /var/lib/machines /var/lib/machines && mount -o remount,bind,noexec /var/lib/machines && mount --bind /etc/systemd /etc/systemd && mount -o remount,bind,ro /etc/systemd")
	code, r := check(t, h, "")
	h.MustRun(t, "umount /var/lib/machines /etc/systemd")
	if code != 1 {
		t.Errorf("check = %d, want 1", code)
	}
	r.want(t, "executable-paths", "error", "/var/lib/machines is mounted noexec, at /var/lib/machines")
	r.want(t, "host-os-configuration", "error", "/etc/systemd/system is on a read-only file system, mounted at /etc/systemd")
}

func activeUnits(t *testing.T, h *host.Host) {
	h.MustRun(t, "systemd-run --quiet --unit=docker sleep infinity")
	code, r := check(t, h, "")
	if code != 0 {
		t.Errorf("check = %d, want 0: a warning", code)
	}
	r.want(t, "docker-active", "warning", "docker.service is active")
	if code, r := check(t, h, "--fail-on-warnings"); code != 1 || r.Status != "failed" {
		t.Errorf("check --fail-on-warnings = %d, %s", code, r.Status)
	}
	h.MustRun(t, "systemctl stop docker")
}

func ignore(t *testing.T, h *host.Host) {
	listener := h.ListenInside(t, "0.0.0.0:10250")
	defer listener.Close()
	for args, want := range map[string]int{
		"": 1, "--ignore kubelet-bind-address": 0, "--ignore=all": 0, "--ignore-preflight-errors swap-active,kubelet-bind-address": 0, "--ignore disk-space": 1,
	} {
		if code, r := check(t, h, args); code != want {
			t.Errorf("check %s = %d, want %d: %s", args, code, want, r.of("kubelet-bind-address"))
		}
	}
	if result := h.Run(t, program+" check --output yaml"); result.Code != 64 {
		t.Errorf("check --output yaml = %d, want 64", result.Code)
	}
}

// TestStage: the unit waits for servers that are not there yet and says so; fails with all errors on one line; does not
// wait when waiting cannot help.
func TestStage(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		h := host.Boot(t, host.Options{Release: release, Overlay: map[string]host.File{
			paths.SystemdDir + "/" + paths.PreflightUnit + ".d/wait.conf": {Content: "[Service]\nEnvironment=UNBOUNDED_PREFLIGHT_WAIT=1min\n"},
		}})
		a := newAPI(t)
		configure(t, h, a, nil)

		h.MustRun(t, "systemctl start --no-block "+paths.PreflightUnit)
		h.Await(t, 20*time.Second, "systemctl show -P StatusText "+paths.PreflightUnit+" | grep -q 'waiting: .*api-server-reachable.*oci-image-reachable'")
		a.start(t, h)
		serve.Registry(t, h)
		serve.Mirror(t, h)
		h.Await(t, time.Minute, "test $(systemctl show -P ActiveState "+paths.PreflightUnit+") = inactive")
		if state := h.MustRun(t, "systemctl is-failed "+paths.PreflightUnit+" || true"); strings.TrimSpace(state) == "failed" {
			t.Fatalf("the stage failed although the servers came:\n%s", h.Journal(t, paths.PreflightUnit))
		}

		trees := host.TreeOptions{Exclude: append([]string{paths.State, paths.ConfigDir}, host.Noise...)}
		before := h.Tree(t, trees)
		result := h.Run(t, "systemctl start "+paths.PreflightUnit)
		if result.Code != 0 {
			t.Errorf("second start = %d", result.Code)
		}
		t.Logf("a look at everything: %v", result.Took.Round(time.Millisecond))
		listener := h.ListenInside(t, "0.0.0.0:10250")
		result = h.Run(t, "mount --bind /var/lib/machines /var/lib/machines && mount -o remount,bind,noexec /var/lib/machines; systemctl start "+paths.PreflightUnit)
		h.MustRun(t, "umount /var/lib/machines")
		_ = listener.Close()
		if result.Code == 0 || result.Took > 30*time.Second {
			t.Errorf("start over a foreign listener = %d after %v, want a failure at once", result.Code, result.Took)
		}
		var failure struct{ Cause string }
		if err := json.Unmarshal([]byte(h.ReadFile(t, paths.LastFailure)), &failure); err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"kubelet-bind-address: ", "executable-paths: ", "; "} {
			if !strings.Contains(failure.Cause, part) {
				t.Errorf("cause %q, want %q in it", failure.Cause, part)
			}
		}
		if diff := cmp.Diff(before, h.Tree(t, trees)); diff != "" {
			t.Errorf("the host changed:\n%s", diff)
		}

		configure(t, h, a, func(c map[string]any) { c["Cluster"].(map[string]any)["ClusterDNS"] = "dns" })
		h.Run(t, "systemctl start "+paths.PreflightUnit)
		if status := strings.TrimSpace(h.MustRun(t, "systemctl show -P ExecMainStatus "+paths.PreflightUnit)); status != "78" {
			t.Errorf("a wrong configuration ends with %s, want 78:\n%s", status, h.Journal(t, paths.PreflightUnit))
		}
	})
}
