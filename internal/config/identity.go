package config

import (
	"net/url"
	"strings"

	"unbounded/internal/record"
	"unbounded/internal/syntax"
)

// ParseIdentity reads only what the install record compares: names, version, image
// and server. All the rest of the document may be wrong or missing, so that a
// complete host needs neither credentials nor an image. Errors are Problems.
func ParseIdentity(data []byte, host Host) (record.Identity, error) {
	file, _, all := read(data)
	if file == nil {
		return record.Identity{}, all.refused()
	}
	var problems Problems
	for _, p := range all {
		switch p.Path {
		case "MachineName", "Cluster", "Cluster.Version", "OCIImage", "Kubelet", "Kubelet.ApiServer", "Kubelet.KubeconfigData":
			problems = append(problems, p)
		}
	}
	identity := file.identity(host, &problems)
	return identity, problems.refused()
}

// identity reads the identity of the installation, with its defaults.
func (f *File) identity(host Host, problems *Problems) record.Identity {
	return record.Identity{
		MachineName:       f.machineName(host, problems),
		KubernetesVersion: f.version(problems),
		OCIImage:          f.image(host, problems),
		APIServer:         f.server(problems),
	}
}

func (f *File) machineName(host Host, problems *Problems) string {
	name := strings.ToLower(strings.TrimSpace(f.MachineName))
	if name != "" {
		problems.check("MachineName", name, syntax.Subdomain(name), fixMachineName)
		return name
	}
	name = strings.ToLower(host.Hostname)
	if !isName(name) {
		problems.add("MachineName", missing+", and the host's name is none of its own", fixMachineName)
		return ""
	}
	return name
}

// isName tells whether a host's name can name a Node: "localhost" would name every host.
func isName(name string) bool {
	return syntax.Subdomain(name) == "" && name != "localhost" && !strings.HasPrefix(name, "localhost.")
}

func (f *File) version(problems *Problems) string {
	version := trimVersion(f.Cluster.Version)
	if version == "" {
		problems.add("Cluster.Version", missing, fixVersion)
		return ""
	}
	problems.check("Cluster.Version", version, syntax.KubernetesVersion(version), fixVersion)
	return version
}

func trimVersion(version string) string {
	return strings.TrimPrefix(strings.TrimSpace(version), "v")
}

func (f *File) image(host Host, problems *Problems) string {
	image := strings.TrimSpace(f.OCIImage)
	if scheme, rest, ok := strings.Cut(image, "://"); ok {
		image = strings.ToLower(scheme) + "://" + rest // what hides the query of a URL knows one spelling
	}
	switch {
	case image == "":
		return host.defaultImage()
	case strings.ContainsFunc(image, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		problems.add("OCIImage", "holds white space or a control character", fixImage)
	case namesUser(image):
		problems.add("OCIImage", "names a user, and messages and records show it", fixImageUser)
	case strings.HasPrefix(image, "http://"):
		problems.add("OCIImage", "is an http:// URL, which anybody on the way can change", fixImage)
	case strings.HasPrefix(image, "oci-layout://") && !strings.HasPrefix(image, "oci-layout:///"):
		problems.add("OCIImage", "names a folder that is not absolute", fixImage)
	}
	return image
}

// namesUser tells whether a reference has a user, or user and password, before its host.
func namesUser(image string) bool {
	if _, rest, ok := strings.Cut(image, "://"); ok {
		image = rest
	}
	host, _, slash := strings.Cut(image, "/")
	return slash && strings.Contains(host, "@")
}

func (f *File) server(problems *Problems) string {
	server := strings.TrimSpace(f.Kubelet.APIServer)
	if server == "" {
		if f.Kubelet.KubeconfigData == "" {
			problems.add("Kubelet.ApiServer", missing, fixServer)
		}
		return ""
	}
	server = record.NormalServer(server)
	u, err := url.Parse(server)
	switch {
	case err != nil:
		problems.add("Kubelet.ApiServer", "is not a URL", fixServer)
	case u.Scheme != "https":
		problems.add("Kubelet.ApiServer", "is not an https:// URL", fixServer)
	case u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		problems.add("Kubelet.ApiServer", "has no host, or a user, query or fragment", fixServer)
	}
	return server
}
