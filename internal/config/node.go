package config

import (
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"strings"

	"unbounded/internal/document"
	"unbounded/internal/syntax"
)

// Versions and images that are used where the configuration names none.
const (
	defaultContainerd = "2.1.8"
	defaultRunc       = "1.5.0"
	defaultCNI        = "1.5.1"
	defaultSandbox    = "mcr.microsoft.com/oss/v2/kubernetes/pause:3.9"
)

// kubelet checks what goes to kubelet beside names, labels and credentials.
func (p *parser) kubelet() {
	k := &p.file.Kubelet
	for i, text := range splitList(k.NodeIP) {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Zone() != "" || address.IsLoopback() || address.IsMulticast() || i > 1 {
			p.problems.check("Kubelet.NodeIP", k.NodeIP, "is not the address of a node", fixNodeIP)
			break
		}
		p.config.NodeIP = append(p.config.NodeIP, address)
	}
	if ip := p.config.NodeIP; len(ip) == 2 && ip[0].Is4() == ip[1].Is4() {
		p.problems.check("Kubelet.NodeIP", k.NodeIP, "has two addresses of one family", fixNodeIP)
	}
	p.overlay(k.Configuration)
	provider := CredentialProvider(k.ImageCredentialProvider)
	if provider == (CredentialProvider{}) {
		return
	}
	const at, fix = "Kubelet.ImageCredentialProvider", "give paths inside the machine, ConfigPath and BinDir or neither"
	p.problems.check(at+".ConfigPath", provider.ConfigPath, syntax.Path(provider.ConfigPath), fix)
	p.problems.check(at+".BinDir", provider.BinDir, syntax.Path(provider.BinDir), fix)
	p.config.CredentialProvider = &provider
}

// overlay refuses the settings that the node is built around.
func (p *parser) overlay(configuration map[string]any) {
	const at = "Kubelet.Configuration"
	for _, key := range sortedKeys(configuration) {
		switch strings.ToLower(key) {
		case "apiversion", "kind", "authentication", "clusterdns", "containerruntimeendpoint",
			"registerwithtaints", "rotatecertificates":
			p.problems.add(document.Member(at, key), "is set by this product", fixOwned)
		case "authorization":
			inner, _ := configuration[key].(map[string]any)
			for _, name := range sortedKeys(inner) {
				if strings.EqualFold(name, "mode") {
					p.problems.add(document.Member(at+".authorization", name), "is set by this product", fixOwned)
				}
			}
		}
	}
	p.config.Kubelet = maps.Clone(configuration)
}

func (p *parser) containerd() {
	c := &p.file.CRI.Containerd
	p.config.SandboxImage = strings.TrimSpace(c.SandboxImage)
	if p.config.SandboxImage == "" {
		p.config.SandboxImage = defaultSandbox
	}
	if strings.ContainsFunc(p.config.SandboxImage, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) {
		p.problems.add("CRI.Containerd.SandboxImage", "is not a reference of an image", fixArtifact)
	}
	seen := map[string]bool{}
	for i, mirror := range c.RegistryMirrors {
		at := document.Index("CRI.Containerd.RegistryMirrors", i)
		p.problems.check(at+".Host", mirror.Host, syntax.RegistryHost(mirror.Host), "give the registry's host[:port], or _default for all")
		if seen[mirror.Host] {
			p.problems.check(at+".Host", mirror.Host, "has a mirror already", "keep one of them")
		}
		seen[mirror.Host] = true
		p.plainURL(at+".Mirror", mirror.Mirror)
		if mirror.Server != "" {
			p.plainURL(at+".Server", mirror.Server)
		}
		p.config.Mirrors = append(p.config.Mirrors, Mirror(mirror))
	}
}

// plainURL checks a URL that goes into a file of containerd.
func (p *parser) plainURL(at, text string) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" ||
		u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(text, "\"\\") {
		p.problems.add(at, "is not a plain URL", fixMirror)
	}
}

func (p *parser) downloads() {
	d, cri := &p.file.Downloads, &p.file.CRI
	p.config.Downloads = map[Artifact]Source{
		Kubernetes: p.source(Kubernetes, d.Kubernetes, 3, "Cluster.Version", p.config.Version, ""),
		Containerd: p.source(Containerd, d.Containerd, 3, "CRI.Containerd.Version", cri.Containerd.Version, defaultContainerd),
		Runc:       p.source(Runc, d.Runc, 2, "CRI.Runc.Version", cri.Runc.Version, defaultRunc),
		CNI:        p.source(CNI, d.CNI, 3, "CNI.PluginVersion", p.file.CNI.PluginVersion, defaultCNI),
		Crictl:     p.source(Crictl, d.Crictl, 4, "", "", minorZero(p.config.Version)),
	}
	if d.Kubernetes.SHA256 != "" {
		p.problems.add("Downloads.Kubernetes.SHA256", "cannot pin three programs with one digest",
			"remove it: the digest beside each program is used")
	}
}

// source checks one download; its URL has at most places times %s. The version is that of
// the download itself, else the one at versionAt, else the default.
func (p *parser) source(artifact Artifact, f FileSource, places int, versionAt, version, byDefault string) Source {
	at := "Downloads." + string(artifact)
	s := Source{BaseURL: strings.TrimRight(strings.TrimSpace(f.BaseURL), "/"), URL: strings.TrimSpace(f.URL), Version: trimVersion(f.Version)}
	switch {
	case s.Version != "":
		versionAt = at + ".Version"
	case trimVersion(version) != "":
		s.Version = trimVersion(version)
	default:
		s.Version, versionAt = byDefault, ""
	}
	if versionAt != "" && versionAt != "Cluster.Version" {
		p.problems.check(versionAt, s.Version, syntax.Version(s.Version), fixArtifact)
	}
	if s.BaseURL != "" {
		p.downloadURL(at+".BaseURL", s.BaseURL)
	}
	if s.URL != "" {
		if found, ok := countPlaces(s.URL); !ok || found > places {
			p.problems.add(at+".URL", "is not a template",
				fmt.Sprintf("write %%s at most %d times, and %%%% for a percent sign", places))
		}
		p.downloadURL(at+".URL", strings.ReplaceAll(strings.ReplaceAll(s.URL, "%s", "x"), "%%", "%25"))
	}
	s.SHA256 = strings.ToLower(strings.TrimPrefix(strings.TrimSpace(f.SHA256), "sha256:"))
	if raw, err := hex.DecodeString(s.SHA256); err != nil || len(raw) != 32 && len(raw) != 0 {
		p.problems.add(at+".SHA256", "is not a SHA-256", fixDigest)
	}
	return s
}

func (p *parser) downloadURL(at, text string) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		p.problems.add(at, "is not an http:// or https:// URL", fixArtifact)
	}
}

// countPlaces counts the %s of a template, which has no other verbs.
func countPlaces(template string) (places int, ok bool) {
	for i := 0; i < len(template); i++ {
		if template[i] != '%' {
			continue
		}
		i++
		switch {
		case i < len(template) && template[i] == 's':
			places++
		case i < len(template) && template[i] == '%':
		default:
			return places, false
		}
	}
	return places, true
}

// minorZero is the first release of a version's minor line: crictl follows it.
func minorZero(version string) string {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 3 {
		return ""
	}
	return parts[0] + "." + parts[1] + ".0"
}

func (p *parser) devices() {
	for i, device := range p.file.AdditionalHostDevices {
		at := document.Index("AdditionalHostDevices", i)
		p.problems.check(at, device, syntax.Device(device), fixDevice)
		p.config.Devices = append(p.config.Devices, device)
	}
}

func (p *parser) mounts() {
	seen := map[string]bool{}
	for i, f := range p.file.AdditionalHostMounts {
		at := document.Index("AdditionalHostMounts", i)
		mount := Mount(f)
		p.problems.check(at+".Source", mount.Source, syntax.Path(mount.Source), fixPath)
		if mount.Target == "" {
			mount.Target = mount.Source
		}
		p.problems.check(at+".Target", mount.Target, syntax.Path(mount.Target), fixPath)
		if mount.Target == "/" {
			p.problems.check(at+".Target", mount.Target, "would cover the whole machine", fixPath)
		}
		if seen[mount.Target] {
			p.problems.check(at+".Target", mount.Target, "has a mount already", "keep one of them")
		}
		seen[mount.Target] = true
		p.config.Mounts = append(p.config.Mounts, mount)
	}
}
