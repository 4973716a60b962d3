//go:build host

package image_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"unbounded/internal/paths"
	"unbounded/internal/release"
	"unbounded/tests/host"
)

// config is a node as an operator describes it.
const config = `{
  "MachineName": "edge-17",
  "Cluster": {
    "CaCertBase64": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BPT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=",
    "ClusterDNS": "10.96.0.10",
    "Version": "v1.37.2"
  },
  "Kubelet": { "ApiServer": "https://api.example.net:6443", "Auth": { "BootstrapToken": "abcdef.0123456789canary" } },
  "OCIImage": "registry.example.net/unbounded/node:v1"
}
`

// TestWorkstation types what the guide says where documents are made, with the product's own programs as the release.
// Debian's ignition-validate takes what comes out, and none of it shows the token.
func TestWorkstation(t *testing.T) {
	product, err := host.Product()
	if err != nil {
		t.Fatal(err)
	}
	artefact, err := host.Artefact("ignition")
	if err != nil {
		t.Fatal(err)
	}
	programs := filepath.Join(product, paths.DefaultRoot, "slots/blue")
	dir := t.TempDir()
	for name, content := range map[string]string{"config.json": config, "manifest.json": manifest(t, programs)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	said := ""
	for _, block := range guide(t, "workstation") {
		shell := exec.CommandContext(t.Context(), "bash", "-euc", block)
		shell.Dir = dir
		shell.Env = []string{"PATH=" + programs + ":" + artefact + ":/usr/bin:/bin", "RELEASE_URL=https://releases.example.net/v1.2.3"}
		out, err := shell.CombinedOutput()
		if err != nil {
			t.Fatalf("%s%v\n%s", block, err, out)
		}
		said += string(out)
	}
	if strings.Contains(said, "canary") {
		t.Errorf("a secret is shown:\n%s", said)
	}
	if !strings.Contains(said, " bytes\n") {
		t.Errorf("no size is said:\n%s", said)
	}
	const userData = 16 << 10
	info, err := os.Stat(filepath.Join(dir, "node.ign"))
	if err != nil || info.Size() >= userData {
		t.Errorf("node.ign: %v bytes, %v, want less than %d", info.Size(), err, userData)
	}
	// In the open, and with everything else that the generator can do in this spec.
	for _, words := range [][]string{
		{"--plain"},
		{"--prefix", "/var/opt/unbounded"},
		{"--boot-complete"},
		{"--root-image", "registry.example.net/other:1"},
		{"--file", "/etc/motd=" + filepath.Join(dir, "config.json") + ",mode=0640"},
	} {
		out := filepath.Join(dir, "other.ign")
		words = append(words, "--config", filepath.Join(dir, "config.json"), "--binaries", programs, "--base-url", "http://192.0.2.1/", "--output", out)
		for _, command := range [][]string{
			append([]string{filepath.Join(programs, "unboundedctl"), "ignition"}, words...), {filepath.Join(artefact, "ignition-validate"), out},
		} {
			if said, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil || strings.HasSuffix(command[0], "-validate") && len(said) > 0 {
				t.Errorf("%s: %v\n%s", strings.Join(command, " "), err, said)
			}
		}
	}
}

// manifest is that of a release of the programs in a folder.
func manifest(t *testing.T, programs string) string {
	t.Helper()
	entries, err := os.ReadDir(programs)
	if err != nil {
		t.Fatal(err)
	}
	m := release.Manifest{SchemaVersion: release.Schema, Version: "v1.2.3"}
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(programs, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		m.Files = append(m.Files, release.File{
			Name: entry.Name(), Kind: release.Program, Arch: "amd64", File: entry.Name() + "-linux-amd64.gz", Compression: release.Gzip,
			Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:]),
			FileSize: 1, FileSHA256: hex.EncodeToString(sum[:]), // nobody fetches it here
		})
	}
	m.Files = append(m.Files, release.File{Name: "operations.md", Kind: release.Document, File: "operations.md", Size: 1, SHA256: strings.Repeat("ab", 32)})
	data, err := m.JSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
