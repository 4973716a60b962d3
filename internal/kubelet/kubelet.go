// Package kubelet makes kubelet's files in a machine from the configuration of a node.
//
// Its functions are pure but for HasCertificate and HasRun, which read. config.yaml and the kubeconfigs are
// written as JSON, which is YAML too: there is no second way to quote a value, the
// order of keys is fixed, and no YAML library is linked.
package kubelet

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"unbounded/internal/config"
	"unbounded/internal/guest"
	"unbounded/internal/paths"
)

// Service is the name of the unit, without its suffix.
const Service = "kubelet"

// Where kubelet's files are, beside those that package paths names.
const (
	CAFile    = "/etc/kubernetes/pki/apiserver-client-ca.crt"
	Manifests = "/etc/kubernetes/manifests"
	unitFile  = paths.SystemdDir + "/" + paths.KubeletUnit
	dropIns   = unitFile + ".d/"
)

// Files are kubelet's files, in the order in which they are written. resolvConf is the
// file from which pods get the resolvers of the host.
func Files(c *config.Config, resolvConf string) ([]guest.File, error) {
	settings, err := settings(c, resolvConf)
	if err != nil {
		return nil, err
	}
	credential, err := credential(c)
	if err != nil {
		return nil, err
	}
	files := []guest.File{
		{Path: Manifests, Kind: guest.Folder, Mode: 0o700},
		{Path: paths.Kubelet, Kind: guest.Folder, Mode: 0o750},
	}
	read := []guest.File{
		guest.Text(paths.KubeletConfig, settings),
		guest.Text(unitFile, unit),
		guest.Text(dropIns+"10-kubeconfig.conf", kubeconfigArgs(c)),
		guest.Text(dropIns+"20-node-config.conf", nodeArgs(c)),
		guest.Text(dropIns+"50-env-file.conf", guest.Mark+"[Service]\nEnvironmentFile=-/etc/default/kubelet\n"),
	}
	if len(c.CA) > 0 {
		read = append(read, guest.Text(CAFile, string(c.CA)))
	}
	files = append(files, guest.ReadBy(Service, read...)...)
	files = append(files, credential...)
	return append(files, guest.Symlink(unitFile, paths.MultiUserWants+"/"+paths.KubeletUnit)), nil
}

// credential is what kubelet first meets the API server with. A bootstrap token is read
// only by a kubelet that has no certificate, and such a one is stopped before its files
// change: a new token alone restarts nothing.
func credential(c *config.Config) ([]guest.File, error) {
	if len(c.Kubeconfig) > 0 {
		return append(guest.ReadBy(Service, guest.Private(paths.Kubeconfig, c.Kubeconfig)), guest.Gone(paths.BootstrapKubeconfig)), nil
	}
	data, err := kubeconfig(c)
	if err != nil {
		return nil, err
	}
	if c.Exec != nil {
		return append(guest.ReadBy(Service, guest.Private(paths.Kubeconfig, data)), guest.Gone(paths.BootstrapKubeconfig)), nil
	}
	return []guest.File{guest.Private(paths.BootstrapKubeconfig, data)}, nil
}

// settings is the KubeletConfiguration with the node's own settings laid over it.
func settings(c *config.Config, resolvConf string) (string, error) {
	data, err := json.MarshalIndent(overlay(defaults(c, resolvConf), c.Kubelet), "", "  ")
	if err != nil {
		return "", fmt.Errorf("write KubeletConfiguration: %w", err)
	}
	return guest.Mark + string(data) + "\n", nil
}

func defaults(c *config.Config, resolvConf string) map[string]any {
	authentication := map[string]any{
		"anonymous": map[string]any{"enabled": false},
		"webhook":   map[string]any{"enabled": true},
	}
	if len(c.CA) > 0 {
		authentication["x509"] = map[string]any{"clientCAFile": CAFile}
	}
	settings := map[string]any{
		"apiVersion":                     "kubelet.config.k8s.io/v1beta1",
		"kind":                           "KubeletConfiguration",
		"address":                        listen(c.NodeIP),
		"authentication":                 authentication,
		"authorization":                  map[string]any{"mode": "Webhook"},
		"cgroupDriver":                   "systemd",
		"cgroupsPerQOS":                  true,
		"clusterDNS":                     c.ClusterDNS,
		"clusterDomain":                  "cluster.local",
		"containerRuntimeEndpoint":       "unix://" + paths.ContainerdSocket,
		"enableServer":                   true,
		"enforceNodeAllocatable":         []string{"pods"},
		"eventRecordQPS":                 0,
		"nodeStatusUpdateFrequency":      "10s",
		"podPidsLimit":                   -1,
		"protectKernelDefaults":          true,
		"readOnlyPort":                   0,
		"resolvConf":                     resolvConf,
		"rotateCertificates":             c.Token != "",
		"runtimeRequestTimeout":          "15m",
		"staticPodPath":                  Manifests,
		"streamingConnectionIdleTimeout": "4h",
		"tlsCipherSuites": []string{
			"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
			"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
			"TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
			"TLS_RSA_WITH_AES_256_GCM_SHA384", "TLS_RSA_WITH_AES_128_GCM_SHA256",
		},
		"volumePluginDir": "/etc/kubernetes/volumeplugins",
	}
	if len(c.Taints) > 0 {
		settings["registerWithTaints"] = taints(c.Taints)
	}
	return settings
}

// listen is the address of kubelet's own server: every one, of IPv6 too when the node has such an address.
func listen(nodeIP []netip.Addr) string {
	if slices.ContainsFunc(nodeIP, netip.Addr.Is6) {
		return "::"
	}
	return "0.0.0.0"
}

func taints(list []string) []map[string]string {
	var taints []map[string]string
	for _, text := range list {
		colon := strings.LastIndexByte(text, ':')
		key, value, _ := strings.Cut(text[:colon], "=")
		taint := map[string]string{"key": key, "effect": text[colon+1:]}
		if value != "" {
			taint["value"] = value
		}
		taints = append(taints, taint)
	}
	return taints
}

// overlay returns base with over laid on it: objects are merged, everything else is replaced, null removes.
func overlay(base, over map[string]any) map[string]any {
	merged := maps.Clone(base)
	for key, value := range over {
		inner, ok := value.(map[string]any)
		have, both := merged[key].(map[string]any)
		switch {
		case value == nil:
			delete(merged, key)
		case ok && both:
			merged[key] = overlay(have, inner)
		default:
			merged[key] = value
		}
	}
	return merged
}

func kubeconfigArgs(c *config.Config) string {
	args := "--kubeconfig=" + paths.Kubeconfig
	if c.Token != "" {
		args = "--bootstrap-kubeconfig=" + paths.BootstrapKubeconfig + " " + args
	}
	return environment("KUBELET_KUBECONFIG_ARGS", args)
}

// nodeArgs are the settings that exist only as flags.
func nodeArgs(c *config.Config) string {
	args := []string{"--hostname-override=" + c.NodeName}
	var labels, addresses []string
	for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
		labels = append(labels, key+"="+c.Labels[key])
	}
	for _, address := range c.NodeIP {
		addresses = append(addresses, address.String())
	}
	if len(labels) > 0 {
		args = append(args, "--node-labels="+strings.Join(labels, ","))
	}
	if len(addresses) > 0 {
		args = append(args, "--node-ip="+strings.Join(addresses, ","))
	}
	if p := c.CredentialProvider; p != nil {
		args = append(args, "--image-credential-provider-config="+p.ConfigPath, "--image-credential-provider-bin-dir="+p.BinDir)
	}
	return environment("KUBELET_NODE_CONFIG_ARGS", strings.Join(args, " "))
}

// environment is a drop-in that sets one variable. The values have no white space and no quotes
// (config checks them); a percent sign would be a specifier.
func environment(name, value string) string {
	return guest.Mark + "[Service]\nEnvironment=\"" + name + "=" + strings.ReplaceAll(value, "%", "%%") + "\"\n"
}

// unit waits for no network: the machine shares the host's, and kubelet tries again by itself.
const unit = guest.Mark + `[Unit]
Description=kubelet
Documentation=https://kubernetes.io/docs/reference/command-line-tools-reference/kubelet/
ConditionPathExists=/usr/local/bin/kubelet
# Absent while the files of kubelet are being changed.
ConditionPathExists=` + paths.Built + `
Wants=containerd.service
After=containerd.service
StartLimitIntervalSec=0

[Service]
ExecStart=/usr/local/bin/kubelet --config=` + paths.KubeletConfig + ` $KUBELET_KUBECONFIG_ARGS $KUBELET_NODE_CONFIG_ARGS $KUBELET_TUNING_ARGS $KUBELET_EXTRA_ARGS
Restart=always
RestartSec=5
SuccessExitStatus=143

[Install]
WantedBy=multi-user.target
`
