package config

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"unbounded/internal/document"
	"unbounded/internal/paths"
	"unbounded/internal/syntax"
)

// Parse checks a whole configuration. The error holds Problems, all of them at once,
// with the status that a retry cannot help. No error or notice shows a credential.
func Parse(data []byte, host Host) (*Config, error) {
	file, unknown, problems := read(data)
	if file == nil {
		return nil, problems.refused()
	}
	p := &parser{file: file, host: host, problems: &problems, config: new(Config)}
	if len(unknown) > 0 {
		p.notice("keys that this release does not know are ignored: %s", document.Short(strings.Join(unknown, ", ")))
	}
	p.identity()
	p.cluster()
	p.credential()
	p.labels()
	p.taints()
	p.kubelet()
	p.containerd()
	p.downloads()
	p.devices()
	p.mounts()
	p.settings()
	if err := problems.refused(); err != nil {
		return nil, err
	}
	applied, err := p.applied()
	if err != nil {
		return nil, fmt.Errorf("write applied configuration: %w", err)
	}
	p.config.Applied = applied
	return p.config, nil
}

type parser struct {
	file     *File
	host     Host
	problems *Problems
	config   *Config
}

func (p *parser) notice(format string, args ...any) {
	p.config.Notices = append(p.config.Notices, "config: "+fmt.Sprintf(format, args...))
}

func (p *parser) identity() {
	identity := p.file.identity(p.host, p.problems)
	c := p.config
	c.MachineName, c.Version = identity.MachineName, identity.KubernetesVersion
	c.Image, c.APIServer = identity.OCIImage, identity.APIServer

	c.NodeName = strings.TrimSpace(p.file.NodeName)
	switch hostname := strings.ToLower(p.host.Hostname); {
	case c.NodeName != "":
		p.problems.check("NodeName", c.NodeName, syntax.Subdomain(c.NodeName), fixNodeName)
	case isName(hostname):
		c.NodeName = hostname
	default:
		c.NodeName = c.MachineName
	}
}

func (p *parser) cluster() {
	p.config.CA = p.certificates()
	dns := splitList(p.file.Cluster.ClusterDNS)
	if len(dns) == 0 {
		p.problems.add("Cluster.ClusterDNS", missing, fixDNS)
	}
	for _, text := range dns {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Zone() != "" {
			p.problems.check("Cluster.ClusterDNS", text, "is not an IP address", fixDNS)
			continue
		}
		p.config.ClusterDNS = append(p.config.ClusterDNS, address)
	}
}

// certificates decodes the CA. It is not parsed as X.509 here: that is preflight's,
// which has a TLS library linked anyway.
func (p *parser) certificates() []byte {
	const at = "Cluster.CaCertBase64"
	text := strings.TrimSpace(p.file.Cluster.CaCertBase64)
	if text == "" {
		if p.file.Kubelet.KubeconfigData == "" {
			p.problems.add(at, missing, fixCA)
		}
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		p.problems.add(at, "is not base64", fixCA)
		return nil
	}
	found := false
	for rest := data; ; found = true {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			p.problems.add(at, "holds something that is not a certificate", fixCA)
		}
	}
	if !found {
		p.problems.add(at, "holds no PEM certificate", fixCA)
	}
	return data
}

func (p *parser) credential() {
	k := &p.file.Kubelet
	token := p.token()
	ways := 0
	if token != "" {
		ways++
		p.problems.addIf(syntax.BootstrapToken(token), "Kubelet.Auth.BootstrapToken", fixToken)
		p.config.Token = Secret(token)
	}
	if k.Auth.ExecCredential != nil {
		ways++
		p.config.Exec = p.exec(k.Auth.ExecCredential)
	}
	if k.KubeconfigData != "" {
		ways++
		data, err := base64.StdEncoding.DecodeString(k.KubeconfigData)
		if err != nil || len(data) == 0 {
			p.problems.add("Kubelet.KubeconfigData", "is not base64", "encode the whole kubeconfig with base64")
		}
		p.config.Kubeconfig = data
	}
	attest := strings.TrimSpace(p.file.Attest.URL) != ""
	switch {
	case ways > 1:
		p.problems.add("Kubelet.Auth", "more than one credential is given", fixAuth)
	case ways == 0 && attest:
		p.problems.add("Attest.URL", "is the only source of a credential", fixAttest)
	case ways == 0:
		p.problems.add("Kubelet.Auth", "no credential is given", fixAuth)
	case attest:
		p.notice("Attest is ignored: attestation is not in this release, and a credential is there")
	}
}

// token is the bootstrap token of either place, without what editors and shells add to it.
func (p *parser) token() string {
	flat, token := trimToken(p.file.Kubelet.BootstrapToken), trimToken(p.file.Kubelet.Auth.BootstrapToken)
	if flat == "" {
		return token
	}
	if token != "" && token != flat {
		p.problems.add("Kubelet.BootstrapToken", "differs from Kubelet.Auth.BootstrapToken", "keep the latter")
		return token
	}
	p.notice("Kubelet.BootstrapToken is the older place of Kubelet.Auth.BootstrapToken; it is read")
	return flat
}

func trimToken(token string) string {
	return strings.TrimFunc(token, func(r rune) bool { return r <= ' ' || r == '\ufeff' || r == '\u00a0' || r == 0x7f })
}

func (p *parser) exec(f *FileExec) *Exec {
	const at = "Kubelet.Auth.ExecCredential"
	e := &Exec{
		APIVersion: f.APIVersion, Command: strings.TrimSpace(f.Command), Args: f.Args,
		InteractiveMode: f.InteractiveMode, ProvideClusterInfo: f.ProvideClusterInfo,
	}
	if e.APIVersion == "" {
		e.APIVersion = "client.authentication.k8s.io/v1"
	}
	switch e.APIVersion {
	case "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1":
	default:
		p.problems.check(at+".apiVersion", e.APIVersion, "is no version of the plugin API", "give client.authentication.k8s.io/v1")
	}
	switch e.InteractiveMode {
	case "":
		e.InteractiveMode = "Never"
	case "Never", "IfAvailable":
	default:
		p.problems.add(at+".interactiveMode", "needs a terminal, which kubelet has not", "write Never")
	}
	if e.Command == "" {
		p.problems.add(at+".command", missing, "name the program inside the machine that prints the credential")
	}
	for i, variable := range f.Env {
		if variable.Name == "" || strings.ContainsAny(variable.Name, "=\x00") {
			p.problems.add(document.Index(at+".env", i)+".name", "is not a name of a variable", "")
		}
		e.Env = append(e.Env, ExecEnv{variable.Name, Secret(variable.Value)})
	}
	return e
}

func (p *parser) labels() {
	p.config.Labels = p.file.Kubelet.Labels
	for _, key := range sortedKeys(p.config.Labels) {
		at := document.Key("Kubelet.Labels", key)
		p.problems.addIf(syntax.LabelKey(key), at, fixLabel)
		p.problems.addIf(syntax.NodeLabel(key), at, fixReserved)
		value := p.config.Labels[key]
		p.problems.check(at, value, syntax.LabelValue(value), fixLabel)
	}
}

func (p *parser) taints() {
	seen := map[string]bool{}
	for i, text := range p.file.Kubelet.RegisterWithTaints {
		at := document.Index("Kubelet.RegisterWithTaints", i)
		text = strings.TrimSpace(text)
		p.problems.check(at, text, syntax.Taint(text), fixTaint)
		rest, effect := text, ""
		if colon := strings.LastIndexByte(text, ':'); colon >= 0 {
			rest, effect = text[:colon], text[colon:]
		}
		key, _, _ := strings.Cut(rest, "=")
		if seen[key+effect] {
			p.problems.check(at, text, "repeats key and effect of a taint before it", "keep one of them")
		}
		seen[key+effect] = true
		p.config.Taints = append(p.config.Taints, text)
	}
}

// applied is the configuration that a node is built from: what was read, with its
// defaults and without what only serves the way there.
func (p *parser) applied() ([]byte, error) {
	f, c := *p.file, p.config
	f.MachineName, f.NodeName = c.MachineName, c.NodeName
	f.OCIImage, f.Cluster.Version, f.Kubelet.APIServer = c.Image, c.Version, c.APIServer
	f.Kubelet.BootstrapToken, f.Kubelet.Auth.BootstrapToken = "", string(c.Token)
	f.Attest.URL = ""
	f.Downloads = FileDownloads{}
	data, err := json.MarshalIndent(f, "", "  ")
	return append(data, '\n'), err
}

// addIf notes what is wrong with a value that is not shown.
func (p *Problems) addIf(wrong, path, fix string) {
	if wrong != "" {
		p.add(path, wrong, fix)
	}
}

func (p *parser) settings() {
	c := p.config
	switch c.HostFirewall = Firewall(p.file.HostFirewall); c.HostFirewall {
	case "":
		c.HostFirewall = FirewallClean
	case FirewallClean, FirewallKeep:
	default:
		p.problems.check("HostFirewall", p.file.HostFirewall, "is not a way to treat the host's firewall", fixFirewall)
	}
	c.RegistryAuthFile = p.file.RegistryAuthFile
	if c.RegistryAuthFile == "" && p.host.RegistryAuth {
		c.RegistryAuthFile = paths.RegistryAuth
	}
	if c.RegistryAuthFile != "" && !cleanAbs(c.RegistryAuthFile) {
		p.problems.check("RegistryAuthFile", c.RegistryAuthFile, "is not a clean absolute path", fixPath)
	}
	c.PreflightIgnore = p.file.Preflight.IgnoreErrors
}

func cleanAbs(name string) bool {
	return path.IsAbs(name) && path.Clean(name) == name && !strings.ContainsRune(name, 0)
}

func splitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r <= ' ' })
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
