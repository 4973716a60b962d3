package vm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"unbounded/tests/cluster"
	"unbounded/tests/ground"
	"unbounded/tests/host"
	"unbounded/tests/serve"
	"unbounded/tests/vm/wire"
)

// Addresses of the registry and the mirror with what stands in for a real node.
const (
	registryAddress = host.OutsideIP + ":5001"
	mirrorAddress   = host.OutsideIP + ":8001"
)

// standIn is a configuration by which the machine becomes a node of the cluster in seconds: the image has
// little in it, containerd and kubelet only stand in for the real ones.
func (v *VM) standIn(t host.T) map[string]any {
	t.Helper()
	image, err := host.Artefact("vm-image")
	if err != nil {
		t.Fatalf("%v", err)
	}
	dir := v.path("mirror")
	changes := map[string]any{
		"OCIImage":                     registryAddress + "/unbounded/node:node",
		"Downloads.Kubernetes.BaseURL": "http://" + mirrorAddress + "/kubernetes",
	}
	for _, part := range []string{"Containerd", "Runc", "CNI", "Crictl"} {
		changes["Downloads."+part+".BaseURL"] = "http://" + mirrorAddress + "/" + strings.ToLower(part)
	}
	if err := v.layOut(t, dir); err != nil {
		t.Fatalf("lay out the mirror: %v", err)
	}
	serve.Start(t, v.Ground.Host, registryAddress, serve.Layout(image))
	serve.Start(t, v.Ground.Host, mirrorAddress, http.FileServer(http.Dir(dir)))
	return changes
}

// layOut makes a mirror like that of scripts/ground/mirror.
func (v *VM) layOut(t host.T, dir string) error {
	program, err := Guest()
	if err != nil {
		return err
	}
	kubelet, err := v.kubelet(t, program)
	if err != nil {
		return err
	}
	// Each has a digest of its own, as in life.
	idle := func(name string) []byte { return []byte("#!/bin/sh\n# " + name + "\n") }
	kubernetes := filepath.Join(dir, "kubernetes", v.Ground.Cluster.Version, "bin/linux/amd64")
	for name, content := range map[string][]byte{"kubelet": kubelet, "kubectl": idle("kubectl"), "kube-proxy": idle("kube-proxy")} {
		if err := publish(filepath.Join(kubernetes, name), content, name+".sha256"); err != nil {
			return err
		}
	}
	type artefact struct {
		part, file, sums string // with a %s for the version
		content          []byte
	}
	for _, a := range []artefact{
		{"runc", "runc.amd64", "runc.sha256sum", idle("runc")},
		{"containerd", "containerd-%s-linux-amd64.tar.gz", "containerd-%s-linux-amd64.tar.gz.sha256sum", pack(map[string][]byte{"bin/containerd": program, "bin/containerd-shim-runc-v2": idle("shim")})},
		{"cni", "cni-plugins-linux-amd64-v%s.tgz", "cni-plugins-linux-amd64-v%s.tgz.sha256", pack(map[string][]byte{"./bridge": idle("bridge"), "./host-local": idle("host-local"), "./loopback": idle("loopback"), "./portmap": idle("portmap")})},
		{"crictl", "crictl-v%s-linux-amd64.tar.gz", "crictl-v%s-linux-amd64.tar.gz.sha256", pack(map[string][]byte{"crictl": idle("crictl")})},
	} {
		version, err := host.ArtefactVersion("mirror", a.part)
		if err != nil {
			return err
		}
		name := func(pattern string) string { return strings.ReplaceAll(pattern, "%s", version) }
		if err := publish(filepath.Join(dir, a.part, "v"+version, name(a.file)), a.content, name(a.sums)); err != nil {
			return err
		}
	}
	return nil
}

// kubelet is the program that stands in for kubelet, with the credential that the real one would get.
func (v *VM) kubelet(t host.T, program []byte) ([]byte, error) {
	t.Helper()
	const credential = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	c := v.Ground.Cluster
	kubeconfig, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "default",
		"clusters": []any{map[string]any{"name": "default", "cluster": map[string]any{
			"server": cluster.Server, "certificate-authority-data": c.CA,
		}}},
		"users":    []any{map[string]any{"name": "default", "user": map[string]any{"client-certificate": credential, "client-key": credential}}},
		"contexts": []any{map[string]any{"name": "default", "context": map[string]any{"cluster": "default", "user": "default"}}},
	})
	if err != nil {
		return nil, err
	}
	payload, err := json.Marshal(wire.Kubelet{
		Node: ground.NodeName, Server: cluster.Server, CA: string(c.CA), Kubeconfig: string(kubeconfig),
		Credential: string(c.Credential(t, "system:node:"+ground.NodeName, "system:nodes")),
	})
	return bytes.Join([][]byte{program, payload}, []byte(wire.Mark())), err
}

// publish writes a file, and beside it one with its digest.
func publish(path string, content []byte, sums string) error {
	sum := sha256.Sum256(content)
	line := fmt.Sprintf("%s  %s\n", hex.EncodeToString(sum[:]), filepath.Base(path))
	return errors.Join(
		os.MkdirAll(filepath.Dir(path), 0o755),
		os.WriteFile(path, content, 0o755),
		os.WriteFile(filepath.Join(filepath.Dir(path), sums), []byte(line), 0o644),
	)
}

// pack makes an archive of programs.
func pack(programs map[string][]byte) []byte {
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	for name, content := range programs {
		// Into memory: nothing fails.
		_ = archive.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))})
		_, _ = archive.Write(content)
	}
	_ = archive.Close()
	_ = zipped.Close()
	return packed.Bytes()
}
