//go:build host || fault

package reset

import (
	"path"
	"slices"
	"strings"
	"testing"

	"unbounded/internal/paths"
	"unbounded/tests/compare"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

// public is what the public agent lays on a host, without a record: its programs, units, settings of the host and a
// machine. Its own ways of writing, and what it does not save.
func public() map[string]host.File {
	const bin = "/usr/local/bin/unbounded-agent"
	program := host.File{Mode: 0o755, Content: "#!/bin/sh\n# built from github.com/Azure/unbounded/cmd/agent\nexec sleep infinity\n"}
	files := map[string]host.File{
		bin: {Link: bin + "-current"}, bin + "-current": {Link: bin + "-blue"}, bin + "-last-good": {Link: bin + "-blue"},
		bin + "-blue": program, bin + "-green": program, bin + "-nspawn-lifecycle": program,
		bin + "-daemon-recovery.sh": {Mode: 0o755, Content: "#!/bin/sh\nexec systemctl restart unbounded-agent-daemon\n"},

		paths.SystemdDir + "/" + paths.DaemonUnit: {Content: "[Unit]\nOnFailure=" + paths.RecoveryUnit + "\n[Service]\nExecStart=" + bin + "-current daemon\n" +
			"Restart=always\n[Install]\nWantedBy=multi-user.target\n"},
		paths.SystemdDir + "/" + paths.RecoveryUnit: {Content: "[Service]\nType=oneshot\nExecStart=" + bin + "-daemon-recovery.sh\n"},
		paths.SystemdDir + "/nftables-flush.service": {Content: "[Unit]\nBefore=systemd-nspawn@.service\n[Service]\nType=oneshot\n" +
			"ExecStart=/usr/sbin/nft -f /etc/unbounded/kube/nftables-clear.nft\n[Install]\nRequiredBy=systemd-nspawn@.service\n"},
		"/etc/unbounded/kube/nftables-clear.nft": {Content: "flush ruleset\n", Mode: 0o600},

		paths.Applied("kube1"):                                               {Content: "{}\n", Mode: 0o600},
		paths.Applied("kube1") + ".sha256":                                   {Content: "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\n", Mode: 0o600},
		paths.ConfigDir + "/daemon-controller/daemon-controller-current.pem": {Content: "x", Mode: 0o600},

		paths.Nspawn("kube1"):     {Content: "[Exec]\nBoot=no\nParameters=/bin/sleep infinity\nPrivateUsers=no\n[Network]\nVirtualEthernet=no\n"},
		paths.DropInFile("kube1"): {Content: "[Service]\nExecStartPre=/bin/sh -c 'mkdir -p /run/bpffs/%i; mountpoint -q /run/bpffs/%i || mount -t bpf bpf /run/bpffs/%i'\n"},

		"/etc/sysctl.d/99-kubernetes.conf": {Content: parameters},
		"/etc/apt/apt.conf.d/99-unbounded-no-restart-systemd": {
			Content: "Unattended-Upgrade::Package-Blacklist {\n  \"systemd\"; \"systemd-container\"; \"systemd-sysv\"; \"libsystemd0\"; \"libcap2\"; \"libcap2-bin\"; \"libpam-cap\";\n};\n",
		},
		"/etc/needrestart/conf.d/99-unbounded.conf": {Content: "$nrconf{restart} = 'l';\n"},
		"/etc/docker/daemon.json":                   {Content: "{\n  \"debug\": true,\n  \"iptables\": false\n}\n"},
		"/etc/fstab":                                {Content: "# swap was here\n#/dev/absent none swap sw,nofail 0 0\n"},
		"/etc/fstab.bak":                            {Content: "# swap was here\n/dev/absent none swap sw,nofail 0 0\n"},
		"/var/lib/unbounded/container-images/a.tar": {Content: "x"},
		"/tmp/unbounded-agent.json":                 {Content: "{}\n", Mode: 0o600},
	}
	for _, unit := range []string{"docker.service", "docker.socket"} {
		files[paths.SystemdDir+"/"+unit] = host.File{Link: "/dev/null"}
	}
	return files
}

// parameters are those that the public agent sets.
const parameters = `vm.overcommit_memory=1
vm.panic_on_oom=0
kernel.panic=10
kernel.panic_on_oops=1
kernel.keys.root_maxkeys=1000000
kernel.keys.root_maxbytes=25000000
net.bridge.bridge-nf-call-iptables=1
net.bridge.bridge-nf-call-ip6tables=1
net.ipv4.ip_forward=1
net.ipv4.conf.all.src_valid_mark=1
net.ipv4.conf.default.src_valid_mark=1
net.ipv4.conf.all.rp_filter=0
net.ipv4.conf.default.rp_filter=0
`

// A host that the public agent has installed, which notes neither that it did nor what was there before, is given back
// too: but for what cannot be told from an operator's own, and that is named.
func TestLegacy(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		operator := map[string]host.File{
			"/etc/docker/daemon.json": {Content: "{\n  \"debug\": true\n}\n"},
			"/etc/fstab":              {Content: "# swap was here\n/dev/absent none swap sw,nofail 0 0\n"},
			paths.Config:              {Content: "{}\n", Mode: 0o600},
			"/usr/lib/systemd/system/docker.service": {
				Content: "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n",
			},
			"/usr/lib/systemd/system/docker.socket": {Content: "[Socket]\nListenStream=/run/docker.sock\n"},
			"/usr/local/bin/kubectl":                {Content: "#!/bin/sh\n# github.com/Azure/unbounded/\n", Mode: 0o755},
			paths.Machines + "/other/own":           {Content: "x"},
		}
		g := &ground.Ground{Host: host.Boot(t, host.Options{Release: release, Overlay: operator})}
		before := compare.Take(t, g.Host)
		// Kernel parameters that all hosts share are put back when the last one is gone, but not before.
		const shared = "vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes"
		pinned := g.MustRun(t, "sysctl "+shared)

		agent := public()
		for name, file := range agent {
			g.WriteFile(t, name, file)
		}
		must(t, g, `mkdir -p `+tree+` && cp -a --one-file-system /bin /sbin /lib* /usr /etc `+tree+`/ &&
			systemctl daemon-reload && systemctl stop docker.socket; systemctl enable --now nftables-flush `+paths.DaemonUnit+` &&
			systemctl enable --now systemd-nspawn@kube1 && sysctl -q -p /etc/sysctl.d/99-kubernetes.conf && test -e /run/bpffs/kube1`)
		must(t, g, network)
		must(t, g, reset)

		said := g.MustRun(t, "journalctl -b -o cat -u 'unbounded-reset-*'")
		for _, line := range compare.Diff(before, compare.Take(t, g.Host)) {
			class, object, _ := strings.Cut(line, " ")
			object, _, _ = strings.Cut(object, ":")
			names := []string{object, path.Base(object)}
			if class == "sysctls" {
				names = []string{"parameters before"} // as a whole
			}
			if !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(said, name) }) {
				t.Errorf("left, and not said: %s", line)
			}
		}
		for name := range agent {
			for _, part := range []string{"unbounded", "nftables-flush", "kube1", "kubernetes"} {
				if name != paths.Config && strings.Contains(name, part) && g.Exists(t, name) {
					t.Errorf("%s is still there", name)
				}
			}
		}
		g.WriteFile(t, "/run/pinned", host.File{Content: pinned})
		g.MustRun(t, "sysctl -q -p /run/pinned")
		if t.Failed() {
			t.Logf("said:\n%s", said)
		}
	})
}
