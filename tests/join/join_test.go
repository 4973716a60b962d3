//go:build cluster

// Package join tests unbounded-join against a real control plane: each cause for which a
// node does not join has a message of its own, and a node that joins is promoted once.
package join

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/paths"
	"unbounded/tests/cluster"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

// limit is how long the stage waits for what may pass.
const limit = 45 * time.Second

// undecided prints the names of the certificate requests that nobody has decided about.
const undecided = "go-template={{range .items}}{{if not .status.conditions}}{{.metadata.name}} {{end}}{{end}}"

// failure is what a failed start leaves.
type failure struct {
	Stage  string    `json:"stage"`
	Unit   string    `json:"unit"`
	Cause  string    `json:"cause"`
	Status int       `json:"status"`
	Time   time.Time `json:"time"`
}

// fails starts the target, which has to fail at join, and returns what it says.
func fails(t *testing.T, g *ground.Ground, parts ...string) {
	t.Helper()
	began := time.Now()
	result := g.Run(t, "systemctl start "+paths.Target)
	if result.Code != 1 {
		t.Errorf("start = %d after %v, want 1", result.Code, result.Took)
	}
	if state := strings.TrimSpace(g.Run(t, "systemctl is-active "+paths.Target).Out); state != "inactive" {
		t.Errorf("the target is %s, want inactive", state)
	}
	// It is there when the start returns.
	var f failure
	if err := json.Unmarshal([]byte(g.ReadFile(t, paths.LastFailure)), &f); err != nil {
		t.Fatal(err)
	}
	t.Logf("%v: %s", result.Took.Round(time.Second), f.Cause)
	if f.Stage != "unbounded-join" || f.Unit != paths.JoinUnit("kube1") || f.Status != 1 || f.Time.Before(began.Add(-time.Minute)) {
		t.Errorf("last failure is %+v", f)
	}
	for _, part := range parts {
		if !strings.Contains(f.Cause, part) {
			t.Errorf("cause %q, want %q in it", f.Cause, part)
		}
	}
	if strings.Contains(f.Cause, "canary") || strings.Contains(f.Cause, "\n") {
		t.Errorf("cause %q shows the token, or has more than one line", f.Cause)
	}
	for _, path := range []string{paths.Applied("kube1"), paths.Active("kube1")} {
		if g.Exists(t, path) {
			t.Errorf("%s is there although the node has not joined", path)
		}
	}
}

// boot boots a host whose join does not wait long, and whose preflight lets everything pass.
func boot(t *testing.T, release string) (*ground.Ground, map[string]any) {
	t.Helper()
	base := map[string]any{"Preflight.IgnoreErrors": []any{"all"}}
	g := ground.Boot(t, ground.Options{
		Host: host.Options{Release: release, Overlay: map[string]host.File{
			paths.SystemdDir + "/unbounded-join@.service.d/wait.conf": {Content: "[Service]\nEnvironment=UNBOUNDED_JOIN_TIMEOUT=" + limit.String() + "\n"},
		}},
		Cluster: cluster.Options{Manual: true},
		Config:  base,
	})
	return g, base
}

func with(base map[string]any, key string, value any) map[string]any {
	changed := map[string]any{key: value}
	for k, v := range base {
		changed[k] = v
	}
	return changed
}

func TestCauses(t *testing.T) {
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) {
			g, base := boot(t, release)
			whole := t // the API server that is started again outlives its step
			t.Run("pending", func(t *testing.T) {
				fails(t, g, "certificate request csr-", "pending", "kubectl certificate approve csr-", limit.String())
			})
			t.Run("denied", func(t *testing.T) { denied(t, g) })
			t.Run("unreachable", func(t *testing.T) {
				g.Cluster.StopAPI()
				defer g.Cluster.StartAPI(whole)
				fails(t, g, "unreachable", cluster.Server, "connection refused", "Kubelet.ApiServer", limit.String())
			})
			t.Run("untrusted", func(t *testing.T) {
				g.WriteConfig(t, with(base, "Cluster.CaCertBase64", otherCA(t)))
				fails(t, g, "not trusted", cluster.Server, "Cluster.CaCertBase64")
			})
			t.Run("rejected", func(t *testing.T) {
				g.WriteConfig(t, with(base, "Kubelet.Auth.BootstrapToken", "joiner.canary0000000000"))
				fails(t, g, "bootstrap token is rejected", cluster.Server, "Kubelet.Auth.BootstrapToken")
			})
			t.Run("crashing", func(t *testing.T) {
				// What was denied before counts as denied for 30 s, and kubelet needs that long to end five times.
				g.Cluster.Kubectl(t, "delete", "csr", "--all")
				g.WriteConfig(t, with(base, "Kubelet.Configuration.podPidsLimit", "many"))
				fails(t, g, "kubelet", "podPidsLimit", "journalctl -M kube1 -u kubelet")
			})
			g.WriteConfig(t, base)
			t.Run("joined", func(t *testing.T) { joined(t, g) })
		})
	}
}

// denied: somebody denies whatever kubelet asks for.
func denied(t *testing.T, g *ground.Ground) {
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		every(ctx, func() {
			names, _ := g.Cluster.TryKubectl(ctx, "get", "csr", "-o", undecided)
			for _, name := range strings.Fields(names) {
				_, _ = g.Cluster.TryKubectl(ctx, "certificate", "deny", name)
			}
		})
	}()
	defer func() { stop(); <-ended }()
	fails(t, g, "certificate request", "denied", "csr-")
}

func every(ctx context.Context, do func()) {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do()
		}
	}
}

func otherCA(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// joined: with the cause gone the next start succeeds, and what the node was built from is promoted once.
func joined(t *testing.T, g *ground.Ground) {
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		every(ctx, func() {
			names, _ := g.Cluster.TryKubectl(ctx, "get", "csr", "-o", undecided)
			for _, name := range strings.Fields(names) {
				_, _ = g.Cluster.TryKubectl(ctx, "certificate", "approve", name)
			}
		})
	}()
	result := g.Run(t, "systemctl start "+paths.Target)
	stop()
	<-ended
	if result.Code != 0 {
		t.Fatalf("start = %d\n%s", result.Code, g.Journal(t, paths.JoinUnit("kube1")))
	}
	t.Logf("joined after %v", result.Took.Round(time.Second))
	built := g.ReadFile(t, paths.Tree("kube1")+paths.Built)
	if diff := cmp.Diff(built, g.ReadFile(t, paths.Applied("kube1"))); diff != "" {
		t.Errorf("the applied configuration is not built.json:\n%s", diff)
	}
	g.MustRun(t, "cd "+paths.ConfigDir+` && test "$(sha256sum < kube1-applied-config.json | cut -d' ' -f1)" = "$(cat kube1-applied-config.json.sha256)"`)
	if modes := g.MustRun(t, "stat -c %a "+paths.Applied("kube1")+" "+paths.Applied("kube1")+".sha256 "+paths.Active("kube1")); modes != "600\n600\n600\n" {
		t.Errorf("modes are %q, want 600", modes)
	}

	// The listeners are our own now, and preflight knows them.
	out := g.Run(t, paths.DefaultRoot+"/current/unbounded-preflight check --output json").Out
	for _, part := range []string{"held by the kubelet of this machine", "held by the containerd of this machine"} {
		if !strings.Contains(out, part) {
			t.Errorf("preflight: want %q in it:\n%s", part, out)
		}
	}
	if !strings.Contains(out, `"not needed: `+paths.Tree("kube1")+` has the binaries"`) {
		t.Errorf("preflight does not know that the binaries are there:\n%s", out)
	}

	// A complete host verifies fast; what is broken is named, and what is not is left alone.
	g.MustRun(t, "systemctl start "+paths.VerifyUnit)
	timing := g.MustRun(t, "bash -c 'time systemctl start "+paths.VerifyUnit+"' 2>&1 | grep real")
	own := g.MustRun(t, "journalctl -u "+paths.VerifyUnit+" -o json | sed -n 's/.*UNBOUNDED_DURATION_USEC\":\"\\([0-9]*\\).*/\\1/p' | tail -n 1")
	t.Logf("verify: %s, of which it worked for %s µs", strings.TrimSpace(timing), strings.TrimSpace(own))
	g.MustRun(t, "mv "+paths.Nspawn("kube1")+" /run/ && systemctl -M kube1 stop kubelet && chmod 644 "+paths.Applied("kube1"))
	if result := g.Run(t, "systemctl start "+paths.VerifyUnit); result.Code == 0 {
		t.Error("verify succeeds on a broken host")
	}
	said := g.Journal(t, paths.VerifyUnit)
	for _, part := range []string{paths.Nspawn("kube1") + " is missing", "kubelet.service in kube1 is inactive", paths.Applied("kube1") + " has mode 0644"} {
		if !strings.Contains(said, part) {
			t.Errorf("verify: want %q in\n%s", part, said)
		}
	}
}
