// Package ground puts the parts of the test ground together: a host, and beside it a
// cluster, a registry with the node image and a mirror with the node binaries, and
// the configuration with which the host becomes a node of that cluster.
package ground

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"unbounded/tests/cluster"
	"unbounded/tests/host"
	"unbounded/tests/serve"
)

// Target is the target whose start makes a host a node.
const Target = "unbounded-bootstrap.target"

// ConfigPath is where the configuration lies on a host.
const ConfigPath = "/etc/unbounded/agent/config.json"

// NodeName is the name of the node that Config describes.
const NodeName = "node-1"

// Ground is a host with all that it needs to become a node.
type Ground struct {
	*host.Host

	Cluster  *cluster.Cluster
	Registry *serve.Server
	Mirror   *serve.Server
}

// Options choose a ground.
type Options struct {
	Host    host.Options
	Cluster cluster.Options
	Config  map[string]any // changes to Config, as in WriteConfig
}

// Boot boots a host on a ground of its own, and writes its configuration.
func Boot(t host.T, options Options) *Ground {
	t.Helper()
	off := options.Host.Off
	options.Host.Off = true
	h := host.Boot(t, options.Host)
	g := &Ground{
		Host:     h,
		Cluster:  cluster.Start(t, h, options.Cluster),
		Registry: serve.Registry(t, h),
		Mirror:   serve.Mirror(t, h),
	}
	g.WriteConfig(t, options.Config)
	if !off {
		g.On(t)
	}
	return g
}

// Config is a configuration that works on this ground, with changes: the value of
// "Kubelet.Labels.zone" is set there, and a nil value takes the key away.
func (g *Ground) Config(t host.T, changes map[string]any) map[string]any {
	t.Helper()
	versions := map[string]string{}
	for _, part := range []string{"containerd", "runc", "cni", "crictl"} {
		version, err := host.ArtefactVersion("mirror", part)
		if err != nil {
			t.Fatalf("%v", err)
		}
		versions[part] = version
	}
	source := func(part string) map[string]any {
		return map[string]any{"BaseURL": g.Mirror.URL + "/" + part, "Version": versions[part]}
	}
	config := map[string]any{
		"MachineName": NodeName,
		"NodeName":    NodeName,
		"Cluster": map[string]any{
			"CaCertBase64": base64.StdEncoding.EncodeToString(g.Cluster.CA),
			"ClusterDNS":   cluster.ServiceDNS,
			"Version":      g.Cluster.Version,
		},
		"Kubelet": map[string]any{
			"ApiServer": cluster.Server,
			"Auth":      map[string]any{"BootstrapToken": g.Cluster.Token},
			// nspawn hosts on some machines have no controllers for these.
			"Configuration": map[string]any{"cgroupsPerQOS": false, "enforceNodeAllocatable": []any{}},
		},
		"OCIImage": serve.NodeImage,
		"Downloads": map[string]any{
			"Kubernetes": map[string]any{"BaseURL": g.Mirror.URL + "/kubernetes"},
			"Containerd": source("containerd"),
			"Runc":       source("runc"),
			"CNI":        source("cni"),
			"Crictl":     source("crictl"),
		},
	}
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		if err := set(config, key, changes[key]); err != nil {
			t.Fatalf("%v", err)
		}
	}
	return config
}

// WriteConfig writes Config to the host.
func (g *Ground) WriteConfig(t host.T, changes map[string]any) {
	t.Helper()
	encoded, err := json.MarshalIndent(g.Config(t, changes), "", "  ")
	if err != nil {
		t.Fatalf("%v", err)
	}
	g.WriteFile(t, ConfigPath, host.File{Content: string(encoded) + "\n", Mode: 0o600})
}

// set puts a value where a dotted key says.
func set(config map[string]any, key string, value any) error {
	names := strings.Split(key, ".")
	for _, name := range names[:len(names)-1] {
		if config[name] == nil {
			config[name] = map[string]any{}
		}
		inner, isMap := config[name].(map[string]any)
		if !isMap {
			return fmt.Errorf("change %q of the configuration: %s has no keys", key, name)
		}
		config = inner
	}
	last := names[len(names)-1]
	if value == nil {
		delete(config, last)
	} else {
		config[last] = value
	}
	return nil
}
