package kubelet_test

import (
	"encoding/json"
	"io/fs"
	"net/netip"
	"path"
	"strings"
	"testing"

	"unbounded/internal/config"
	"unbounded/internal/golden"
	"unbounded/internal/guest"
	"unbounded/internal/kubelet"
	"unbounded/internal/paths"
	"unbounded/internal/tree"
)

const canary = "cafe0123456789ab"

func base() config.Config {
	return config.Config{
		NodeName: "node-1", APIServer: "https://api.example.test:6443", CA: []byte("the CA\n"),
		ClusterDNS: []netip.Addr{netip.MustParseAddr("10.0.0.10")},
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	token := base()
	token.Token = "abcdef." + canary
	plugin := base()
	plugin.Exec = &config.Exec{
		APIVersion: "client.authentication.k8s.io/v1", Command: "/usr/local/bin/login", Args: []string{"--node"},
		Env: []config.ExecEnv{{Name: "KEY", Value: canary}}, InteractiveMode: "Never", ProvideClusterInfo: true,
	}
	plugin.Labels = map[string]string{"example.test/zone": "a", "a": "", "b.test/c": "d"}
	plugin.Taints = []string{"a.test/b=c:NoSchedule", "d:NoExecute"}
	plugin.NodeIP = []netip.Addr{netip.MustParseAddr("192.168.77.2"), netip.MustParseAddr("fd00::2")}
	plugin.CredentialProvider = &config.CredentialProvider{ConfigPath: "/etc/100%/provider.yaml", BinDir: "/usr/local/bin"}
	plugin.Kubelet = map[string]any{
		"cgroupsPerQOS": false, "enforceNodeAllocatable": []any{}, "maxPods": json.Number("250"), "eventRecordQPS": nil,
		"authorization": map[string]any{"webhook": map[string]any{"cacheAuthorizedTTL": "1m"}},
	}
	whole := base()
	whole.CA, whole.APIServer = nil, ""
	whole.Kubeconfig = []byte("users: [{name: a, user: {token: " + canary + "}}]\n")

	for name, c := range map[string]config.Config{"token": token, "plugin": plugin, "kubeconfig": whole} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files, err := kubelet.Files(&c, "/etc/unbounded/resolv.conf")
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				if f.Kind != guest.Regular {
					continue
				}
				golden.Check(t, "testdata/"+name+"/"+path.Base(f.Path), string(f.Data))
				if secret := strings.Contains(string(f.Data), canary); secret != (f.Mode == fs.FileMode(0o600)) {
					t.Errorf("%s has mode %v, and a secret: %v", f.Path, f.Mode, secret)
				}
				if f.Path == paths.BootstrapKubeconfig && f.Service != "" {
					t.Error("a refreshed token restarts kubelet")
				}
			}
		})
	}
}

func TestJoined(t *testing.T) {
	t.Parallel()
	own := "users:\n- name: default-auth\n  user:\n    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n"
	link := guest.Symlink("/var/lib/kubelet/pki/kubelet-client-1.pem", "/var/lib/kubelet/pki/kubelet-client-current.pem")
	pem := guest.Private("/var/lib/kubelet/pki/kubelet-client-1.pem", []byte("PEM"))
	for _, test := range []struct {
		name             string
		files            []guest.File
		certificate, ran bool
	}{
		{name: "fresh", files: []guest.File{guest.Private(paths.BootstrapKubeconfig, nil), guest.Text(paths.KubeletConfig, "")}},
		{name: "kubeconfig before the certificate", files: []guest.File{guest.Private(paths.Kubeconfig, []byte(own))}},
		{name: "dangling", files: []guest.File{guest.Private(paths.Kubeconfig, []byte(own)), link}, ran: true},
		{name: "certificate", files: []guest.File{guest.Private(paths.Kubeconfig, []byte(own)), link, pem}, certificate: true, ran: true},
		{name: "certificate without kubeconfig", files: []guest.File{link, pem}, ran: true},
		{name: "plugin", files: []guest.File{guest.Private(paths.Kubeconfig, []byte(`{"users":[{"user":{"exec":{}}}]}`))}},
		{name: "outside of the tree", files: []guest.File{
			guest.Private(paths.Kubeconfig, []byte("client-certificate: /../../../../../../../../etc/passwd\n")),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			root, err := tree.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			for _, f := range test.files {
				if err := guest.Apply(root, f); err != nil {
					t.Fatal(err)
				}
			}
			if have, err := kubelet.HasCertificate(root); have != test.certificate || err != nil {
				t.Errorf("HasCertificate() = %v, %v, want %v", have, err, test.certificate)
			}
			if have, err := kubelet.HasRun(root); have != test.ran || err != nil {
				t.Errorf("HasRun() = %v, %v, want %v", have, err, test.ran)
			}
		})
	}
}
