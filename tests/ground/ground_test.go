//go:build host

package ground_test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"unbounded/tests/cluster"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

// The ground carries a node without the product: a machine made of the image, the
// binaries of the mirror and a kubelet that was set up by hand join the cluster and
// become Ready. If this fails, no test of the product means anything.
func TestNodeByHand(t *testing.T) {
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) {
			g := ground.Boot(t, ground.Options{Host: host.Options{Release: release, Bare: true}})
			unpack(t, g)
			install(t, g)
			configure(t, g)
			g.MustRun(t, "sysctl -q -w vm.overcommit_memory=1 kernel.panic=10 kernel.panic_on_oops=1")
			g.MustRun(t, "systemctl start systemd-nspawn@kube1")
			took := g.Cluster.AwaitReady(t, ground.NodeName, 2*time.Minute)
			t.Logf("Ready %v after the start of the machine", took.Round(100*time.Millisecond))

			g.MustRun(t, "systemctl stop systemd-nspawn@kube1")
			g.PowerOff(t)
		})
	}
}

// unpack makes the machine's tree from the image that the registry serves.
func unpack(t *testing.T, g *ground.Ground) {
	t.Helper()
	manifest := g.MustRun(t, "curl -sSf "+g.Registry.URL+"/v2/unbounded/node/manifests/node")
	g.MustRun(t, "mkdir -p /var/lib/machines/kube1")
	layers := 0
	for _, part := range strings.Split(manifest, `"digest":"`)[2:] { // the first is the config
		digest, _, _ := strings.Cut(part, `"`)
		g.MustRun(t, fmt.Sprintf("curl -sSf %s/v2/unbounded/node/blobs/%s | tar -xz --xattrs -C /var/lib/machines/kube1",
			g.Registry.URL, digest))
		layers++
	}
	if layers != 2 {
		t.Fatalf("the image has %d layers, want 2: %s", layers, manifest)
	}
}

// install puts the binaries of the mirror into the tree and checks their sums.
func install(t *testing.T, g *ground.Ground) {
	t.Helper()
	config := g.Config(t, nil)
	source := func(part string) (base, version string) {
		downloads, _ := config["Downloads"].(map[string]any)[part].(map[string]any)
		base, _ = downloads["BaseURL"].(string)
		version, _ = downloads["Version"].(string)
		return base + "/v" + version, version
	}
	containerd, containerdVersion := source("Containerd")
	cni, cniVersion := source("CNI")
	runc, _ := source("Runc")
	g.MustRun(t, fmt.Sprintf(`set -e
		mkdir -p /tmp/get /var/lib/machines/kube1/opt/cni/bin
		cd /tmp/get
		get() { curl -sSf -O "$1"; }
		get %[1]s/kubernetes/%[2]s/bin/linux/amd64/kubelet
		get %[1]s/kubernetes/%[2]s/bin/linux/amd64/kubelet.sha256
		echo "$(cat kubelet.sha256)  kubelet" | sha256sum -c
		get %[3]s/containerd-%[4]s-linux-amd64.tar.gz
		get %[3]s/containerd-%[4]s-linux-amd64.tar.gz.sha256sum
		sha256sum -c containerd-*.sha256sum
		get %[5]s/cni-plugins-linux-amd64-v%[6]s.tgz
		get %[5]s/cni-plugins-linux-amd64-v%[6]s.tgz.sha256
		sha256sum -c cni-*.sha256
		get %[7]s/runc.amd64
		get %[7]s/runc.sha256sum
		sha256sum -c runc.sha256sum
		root=/var/lib/machines/kube1
		install -m 0755 kubelet $root/usr/local/bin/
		install -m 0755 runc.amd64 $root/usr/local/bin/runc
		tar -xzf containerd-*.tar.gz -C $root/usr/local
		tar -xzf cni-*.tgz -C $root/opt/cni/bin
		rm -r /tmp/get`,
		g.Mirror.URL, g.Cluster.Version, containerd, containerdVersion, cni, cniVersion, runc))
}

// configure writes what a node needs, as little as will do.
func configure(t *testing.T, g *ground.Ground) {
	t.Helper()
	const root = "/var/lib/machines/kube1"
	kubeconfig := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"default",
		"clusters":[{"name":"cluster","cluster":{"server":%q,"certificate-authority-data":%q}}],
		"users":[{"name":"kubelet","user":{"token":%q}}],
		"contexts":[{"name":"default","context":{"cluster":"cluster","user":"kubelet"}}]}`,
		cluster.Server, base64.StdEncoding.EncodeToString(g.Cluster.CA), g.Cluster.Token)
	files := map[string]host.File{
		"/etc/systemd/nspawn/kube1.nspawn": {Content: `[Exec]
Capability=all
PrivateUsers=no
NotifyReady=yes
SystemCallFilter=@keyring bpf
[Network]
VirtualEthernet=no
`},
		"/etc/systemd/system/systemd-nspawn@kube1.service.d/override.conf": {Content: `[Service]
Environment=SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 SYSTEMD_NSPAWN_API_VFS_WRITABLE=network
`},
	}
	maps.Copy(files, map[string]host.File{
		root + "/etc/machine-id":                      {Content: strings.Repeat("0123456789abcdef", 2) + "\n", Mode: 0o444},
		root + "/etc/hostname":                        {Content: ground.NodeName + "\n"},
		root + "/etc/tmpfiles.d/kmsg.conf":            {Content: "L /dev/kmsg - - - - /dev/null\n"},
		root + "/etc/kubernetes/ca.crt":               {Content: string(g.Cluster.CA)},
		root + "/var/lib/kubelet/bootstrap":           {Content: kubeconfig, Mode: 0o600},
		root + "/etc/containerd/config.toml":          {Content: containerdConfig},
		root + "/etc/systemd/system/test-cri.service": {Content: unit("/usr/local/bin/containerd", "Type=notify\nDelegate=yes")},
		root + "/etc/systemd/system/test-kubelet.service": {Content: unit("/usr/local/bin/kubelet"+
			" --config=/var/lib/kubelet/config.yaml --hostname-override="+ground.NodeName+
			" --bootstrap-kubeconfig=/var/lib/kubelet/bootstrap --kubeconfig=/var/lib/kubelet/kubeconfig", "Restart=always\nRestartSec=1")},
		root + "/var/lib/kubelet/config.yaml": {Content: `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {x509: {clientCAFile: /etc/kubernetes/ca.crt}, anonymous: {enabled: false}}
cgroupDriver: systemd
cgroupsPerQOS: false
enforceNodeAllocatable: []
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
protectKernelDefaults: true
rotateCertificates: true
`},
	})
	for _, name := range []string{"test-cri", "test-kubelet"} {
		files[root+"/etc/systemd/system/multi-user.target.wants/"+name+".service"] = host.File{
			Link: "/etc/systemd/system/" + name + ".service",
		}
	}
	for path, file := range files {
		g.WriteFile(t, path, file)
	}
}

func unit(start, more string) string {
	return "[Service]\nExecStart=" + start + "\n" + more + "\n"
}

const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "/usr/local/bin/runc"
SystemdCgroup = true
`
