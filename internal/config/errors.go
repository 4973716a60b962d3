package config

import (
	"fmt"
	"strings"

	"unbounded/internal/document"
	"unbounded/internal/exit"
	"unbounded/internal/paths"
)

// Problem is one thing that is wrong with a configuration. None of its texts holds a
// value that may be secret: of credentials and URLs only the path is shown.
type Problem struct {
	Path string // where in the document, as Kubelet.Labels["zone"]; "" for all of it
	What string // "is missing"
	Fix  string // what the operator can do about it
}

func (p Problem) String() string {
	text := p.What
	if p.Path != "" {
		text = p.Path + ": " + p.What
	}
	if p.Fix != "" {
		text += " (" + p.Fix + ")"
	}
	return text
}

// Problems is everything that is wrong with a configuration, in the order of the schema.
type Problems []Problem

// Error puts all problems on one line.
func (p Problems) Error() string {
	return "config: " + strings.Join(p.List(), "; ")
}

// List has one line for each problem.
func (p Problems) List() []string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return lines
}

// refused is nil without problems, otherwise all of them with the status that a retry cannot help.
func (p Problems) refused() error {
	if len(p) == 0 {
		return nil
	}
	return exit.As(exit.Refused, p)
}

// add notes a problem, unless its path, or one above it, has one already.
func (p *Problems) add(path, what, fix string) {
	for _, have := range *p {
		if rest, ok := strings.CutPrefix(path, have.Path); ok && have.Path != "" && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return
		}
	}
	*p = append(*p, Problem{path, what, fix})
}

// check notes what is wrong with the value at path, if something is; it shows the value.
func (p *Problems) check(path, value, wrong, fix string) {
	if wrong != "" {
		p.add(path, fmt.Sprintf("%q %s", document.Short(value), wrong), fix)
	}
}

// What operators read. %s and %q are never filled with a credential or a URL.
const (
	missing = "is missing"

	fixMachineName = "set MachineName, or give the host a name"
	fixNodeName    = "set NodeName, or leave it out to use the host's name"
	fixVersion     = "give the version of Kubernetes, as 1.34.0"
	fixServer      = "give https://host:port of the API server"
	fixCA          = "give the cluster's CA certificate: base64 of PEM"
	fixDNS         = "give the IP address of the cluster's DNS service"
	fixAuth        = "give exactly one of Kubelet.Auth.BootstrapToken, Kubelet.Auth.ExecCredential and Kubelet.KubeconfigData"
	fixToken       = "write <id>.<secret>, as kubeadm token create prints it"
	fixImage       = "give repository:tag, repository@digest, oci-layout:///folder:tag or https://….tar.gz"
	fixImageUser   = "put credentials of registries into RegistryAuthFile, or sign the URL"
	fixArtifact    = "leave it out for the default"
	fixDigest      = "give the SHA-256 of the file: 64 hexadecimal digits"
	fixPath        = "give a clean absolute path"
	fixDevice      = "name a node below /dev, or a group as char-NAME or block-NAME"
	fixNodeIP      = "give one address, or one of IPv4 and one of IPv6 with a comma between"
	fixLabel       = "correct or remove the label"
	fixReserved    = "remove it here and label the Node with kubectl label node"
	fixTaint       = "write key=value:NoSchedule, key=value:PreferNoSchedule or key=value:NoExecute"
	fixOwned       = "remove it from Kubelet.Configuration"
	fixFirewall    = "write clean or keep"
	fixMirror      = "give an http:// or https:// URL without user, query and fragment"
	fixSize        = "make it smaller; " + paths.Config + " holds settings only"
	fixDocument    = "mend " + paths.Config
	fixAttest      = "attestation is not in this release: remove Attest and give a credential of the kubelet"
)
