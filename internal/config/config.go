// Package config reads the configuration of a node: the public agent's JSON.
//
// File is the shape on disk; Parse checks it and returns Config, whose values
// cannot be wrong any more. All problems are reported at once, each with its path.
// Unknown keys are tolerated, since newer agents write them, and named in Notices.
//
// The package is longer than others because it has every key twice, as it is written
// and as it is checked, and a sentence for each thing that can be wrong with it.
package config

import (
	"net/netip"

	"unbounded/internal/record"
)

// Secret is text that must not be printed: every verb of fmt shows "[redacted]".
type Secret string

// String hides the secret.
func (Secret) String() string { return "[redacted]" }

// GoString hides the secret.
func (Secret) GoString() string { return "[redacted]" }

// Firewall says what to do with the packet filter of the host.
type Firewall string

// The values of HostFirewall.
const (
	FirewallClean Firewall = "clean" // default: empty slate before the first machine, the distribution's units held back
	FirewallKeep  Firewall = "keep"  // the operator's rules stay as they are
)

// Artifact names one set of node binaries.
type Artifact string

// The node binaries, by the name of their key in Downloads.
const (
	Kubernetes Artifact = "Kubernetes"
	Containerd Artifact = "Containerd"
	Runc       Artifact = "Runc"
	CNI        Artifact = "CNI"
	Crictl     Artifact = "Crictl"
)

// Source is where an artifact comes from. Zero values mean the public default.
type Source struct {
	BaseURL string
	URL     string // template with %s; wins over BaseURL
	Version string // without v; wins over the other places that name a version
	SHA256  string // pinned digest of the file (hex); empty: the published one is fetched
}

// Mount is a folder or file of the host that the machine sees.
type Mount struct {
	Source   string
	Target   string
	ReadOnly bool
}

// Exec is a credential plugin of client-go (fields of ExecConfig that kubelet uses).
type Exec struct {
	APIVersion         string
	Command            string
	Args               []string
	Env                []ExecEnv
	InteractiveMode    string
	ProvideClusterInfo bool
}

// ExecEnv is one variable of a credential plugin.
type ExecEnv struct {
	Name  string
	Value Secret
}

// Config is a checked configuration.
type Config struct {
	MachineName string // DNS-1123 subdomain, lower case
	NodeName    string
	Version     string // Kubernetes version, no v
	Image       string // reference of the machine's image
	APIServer   string // with scheme
	CA          []byte // PEM
	ClusterDNS  []netip.Addr

	// Exactly one of Token, Exec, Kubeconfig is set. With Kubeconfig, APIServer and CA
	// may be empty. Its content is checked by package kubeconfig, which needs YAML.
	Token      Secret
	Exec       *Exec
	Kubeconfig []byte

	Labels             map[string]string
	Taints             []string // key=value:Effect
	NodeIP             []netip.Addr
	Kubelet            map[string]any // laid over the generated KubeletConfiguration
	CredentialProvider *CredentialProvider

	SandboxImage string
	Mirrors      []Mirror
	Downloads    map[Artifact]Source // every Artifact has an entry, its Version resolved

	Devices []string // clean /dev/ paths, or char-*/block-* groups
	Mounts  []Mount

	HostFirewall     Firewall
	RegistryAuthFile string
	PreflightIgnore  []string

	// Notices are remarks for the operator, one line each, without secrets.
	Notices []string
	// Applied is what built.json and the applied configuration hold: the
	// configuration without Attest and Downloads, indented, with a newline.
	Applied []byte
}

// CredentialProvider are paths inside the machine.
type CredentialProvider struct {
	ConfigPath string
	BinDir     string
}

// Mirror is a registry mirror of containerd.
type Mirror struct {
	Host       string
	Server     string
	Mirror     string
	SkipVerify bool
}

// Identity is what the install record compares.
func (c *Config) Identity() record.Identity {
	return record.Identity{
		MachineName:       c.MachineName,
		KubernetesVersion: c.Version,
		OCIImage:          c.Image,
		APIServer:         c.APIServer,
	}
}
