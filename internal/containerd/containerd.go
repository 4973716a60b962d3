// Package containerd makes containerd's files in a machine from the configuration of a node.
//
// Its functions are pure. The configuration has only what is not containerd's own default: its
// folders of CNI plugins and configurations, /opt/cni/bin and /etc/cni/net.d, are.
package containerd

import (
	"fmt"
	"strings"

	"unbounded/internal/config"
	"unbounded/internal/guest"
	"unbounded/internal/paths"
)

// Service is the name of the unit, without its suffix.
const Service = "containerd"

// CertsDir has one folder for each registry with a mirror. containerd reads it for every pull.
const CertsDir = "/etc/containerd/certs.d"

const unitFile = paths.SystemdDir + "/" + paths.ContainerdUnit

// Files are containerd's files, in the order in which they are written.
func Files(c *config.Config) []guest.File {
	files := guest.ReadBy(Service,
		guest.Text("/etc/containerd/config.toml", settings(c)),
		guest.Text(unitFile, unit),
	)
	files = append(files, guest.Symlink(unitFile, paths.MultiUserWants+"/"+paths.ContainerdUnit))
	for _, mirror := range c.Mirrors {
		files = append(files, guest.Text(HostsFile(mirror.Host), hosts(mirror)))
	}
	return files
}

// HostsFile is where the mirror of host is configured.
func HostsFile(host string) string { return CertsDir + "/" + host + "/hosts.toml" }

// settings is config.toml: of version 3, which containerd reads since 2.0, or 2 before that.
func settings(c *config.Config) string {
	if strings.HasPrefix(c.Downloads[config.Containerd].Version, "1.") {
		return fmt.Sprintf(common+version2, 2, c.SandboxImage)
	}
	return fmt.Sprintf(common+version3, 3, c.SandboxImage)
}

func hosts(m config.Mirror) string {
	var text strings.Builder
	text.WriteString(guest.Mark)
	if m.Server != "" {
		fmt.Fprintf(&text, "server = %q\n", m.Server)
	}
	fmt.Fprintf(&text, "\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", m.Mirror)
	if m.SkipVerify {
		text.WriteString("  skip_verify = true\n")
	}
	return text.String()
}

const common = guest.Mark + `version = %d
imports = ["/etc/containerd/conf.d/*.toml"]
oom_score = 0

[metrics]
  address = "0.0.0.0:10257"
`

const version3 = `
[plugins."io.containerd.cri.v1.images"]
  image_pull_progress_timeout = "30m"

  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = %q

  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "/etc/containerd/certs.d"

    [plugins."io.containerd.cri.v1.images".registry.headers]
      X-Meta-Source-Client = ["unbounded-kube/kubelet"]

[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"

  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "/usr/local/bin/runc"
      NoNewKeyring = true
      SystemdCgroup = true

  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.untrusted]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.untrusted.options]
      BinaryName = "/usr/local/bin/runc"
      NoNewKeyring = true
      SystemdCgroup = true

[plugins."io.containerd.transfer.v1.local"]
  max_concurrent_downloads = 6
`

const version2 = `
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  image_pull_progress_timeout = "30m"
  max_concurrent_downloads = 6

  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "/usr/local/bin/runc"
        NoNewKeyring = true
        SystemdCgroup = true

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.untrusted]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.untrusted.options]
        BinaryName = "/usr/local/bin/runc"
        NoNewKeyring = true
        SystemdCgroup = true

  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"

    [plugins."io.containerd.grpc.v1.cri".registry.headers]
      X-Meta-Source-Client = ["unbounded-kube/kubelet"]
`

const unit = guest.Mark + `[Unit]
Description=containerd container runtime
Documentation=https://containerd.io
After=network.target local-fs.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStartPre=-/sbin/modprobe overlay
ExecStart=/usr/local/bin/containerd
Restart=always
RestartSec=5
KillMode=process
Delegate=yes
OOMScoreAdjust=-999
LimitCORE=infinity
LimitNOFILE=infinity
LimitNPROC=infinity
TasksMax=infinity

[Install]
WantedBy=multi-user.target
`
