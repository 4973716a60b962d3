// Package syntax checks the names that Kubernetes, registries and systemd accept.
//
// Every function returns what is wrong, as the end of a sentence ("is longer than 63
// characters"), and "" when nothing is. No check needs more than the text itself.
package syntax

import (
	"net/netip"
	"strconv"
	"strings"
)

// Subdomain checks a DNS-1123 subdomain: the name of a Node or Machine.
func Subdomain(s string) string {
	if len(s) > 253 {
		return "is longer than 253 characters"
	}
	for label := range strings.SplitSeq(s, ".") {
		if len(label) > 63 || !ends(label, lowerDigit) || !all(label, func(c byte) bool { return lowerDigit(c) || c == '-' }) {
			return "is not a DNS name: a-z, 0-9, '-' and '.', beginning and ending with a letter or digit"
		}
	}
	return ""
}

// LabelKey checks the key of a label or taint: [prefix/]name.
func LabelKey(s string) string {
	name := s
	if prefix, rest, ok := strings.Cut(s, "/"); ok {
		if Subdomain(prefix) != "" {
			return "has a prefix that is not a DNS name"
		}
		name = rest
	}
	if name == "" || len(name) > 63 || LabelValue(name) != "" {
		return "is not a label key: 63 characters of A-Z, a-z, 0-9, '-', '_' and '.' after an optional prefix"
	}
	return ""
}

// LabelValue checks the value of a label or taint; it may be empty.
func LabelValue(s string) string {
	if s == "" {
		return ""
	}
	if len(s) > 63 || !ends(s, alphanumeric) || !all(s, nameByte) {
		return "is not a label value: at most 63 of A-Z, a-z, 0-9, '-', '_' and '.', beginning and ending with a letter or digit"
	}
	return ""
}

// NodeLabel checks that a kubelet may give itself a label with this key: it refuses
// to start with a reserved one.
func NodeLabel(key string) string {
	prefix, _, ok := strings.Cut(key, "/")
	if !ok || !within(prefix, "kubernetes.io") && !within(prefix, "k8s.io") {
		return ""
	}
	if within(prefix, "kubelet.kubernetes.io") || within(prefix, "node.kubernetes.io") {
		return ""
	}
	switch key {
	case "kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os",
		"beta.kubernetes.io/arch", "beta.kubernetes.io/os", "beta.kubernetes.io/instance-type",
		"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
		"topology.kubernetes.io/zone", "topology.kubernetes.io/region":
		return ""
	}
	return "is reserved: a kubelet must not set it on itself"
}

// Taint checks key[=value]:Effect.
func Taint(s string) string {
	rest, effect, ok := cutLast(s, ":")
	if !ok {
		return "is not of the form key=value:Effect"
	}
	switch effect {
	case "NoSchedule", "PreferNoSchedule", "NoExecute":
	default:
		return "has an effect that is none of NoSchedule, PreferNoSchedule, NoExecute"
	}
	key, value, _ := strings.Cut(rest, "=")
	if wrong := LabelKey(key); wrong != "" {
		return "has a key that " + wrong
	}
	if wrong := LabelValue(value); wrong != "" {
		return "has a value that " + wrong
	}
	return ""
}

// BootstrapToken checks <id>.<secret>. The answer never shows the text.
func BootstrapToken(s string) string {
	id, secret, ok := strings.Cut(s, ".")
	if !ok || len(id) != 6 || len(secret) != 16 || !all(id+secret, lowerDigit) {
		return "is not a bootstrap token: 6 characters, a dot, 16 characters, all a-z and 0-9"
	}
	return ""
}

// KubernetesVersion checks major.minor.patch with an optional suffix, without a leading v.
func KubernetesVersion(s string) string {
	const wrong = "is not a version of the form 1.34.0"
	core := s
	if i := strings.IndexAny(s, "-+"); i >= 0 {
		core = s[:i]
		if i == len(s)-1 || !all(s[i+1:], func(c byte) bool { return nameByte(c) && c != '_' || c == '+' }) {
			return wrong
		}
	}
	parts := strings.Split(core, ".")
	if len(parts) != 3 {
		return wrong
	}
	for _, part := range parts {
		if _, err := strconv.ParseUint(part, 10, 16); err != nil || len(part) > 1 && part[0] == '0' {
			return wrong
		}
	}
	return ""
}

// Version checks the version of an artifact, which becomes part of a URL and of file names.
func Version(s string) string {
	if s == "" || len(s) > 64 || !alphanumeric(s[0]) || strings.Contains(s, "..") ||
		!all(s, func(c byte) bool { return nameByte(c) || c == '+' }) {
		return "is not a version: A-Z, a-z, 0-9, '.', '-', '_' and '+'"
	}
	return ""
}

// Path checks a clean absolute path that can stand in systemd's settings.
func Path(s string) string {
	if !strings.HasPrefix(s, "/") {
		return "is not an absolute path"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`:\"'`, r) }) {
		return "holds white space, a control character, ':', a quote or a backslash"
	}
	if s == "/" {
		return ""
	}
	for part := range strings.SplitSeq(s[1:], "/") {
		if part == "" || part == "." || part == ".." {
			return "is not clean: no '//', '.', '..' or '/' at the end"
		}
	}
	return ""
}

// Device checks a device node's path or a group of devices (char-NAME, block-NAME).
func Device(s string) string {
	if name, ok := strings.CutPrefix(s, "char-"); ok {
		return group(name)
	}
	if name, ok := strings.CutPrefix(s, "block-"); ok {
		return group(name)
	}
	if wrong := Path(s); wrong != "" {
		return wrong
	}
	if !strings.HasPrefix(s, "/dev/") {
		return "is neither below /dev nor a group char-NAME or block-NAME"
	}
	return ""
}

func group(name string) string {
	if name == "" || !all(name, func(c byte) bool { return nameByte(c) || c == '*' || c == '/' }) {
		return "is not the name of a device group"
	}
	return ""
}

// RegistryHost checks host[:port], which becomes a folder name.
func RegistryHost(s string) string {
	if s == "_default" {
		return ""
	}
	host, port, ok := cutLast(s, ":")
	if ok && !strings.HasSuffix(s, "]") {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return "has a port that is not a number"
		}
	} else {
		host = s
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if _, err := netip.ParseAddr(strings.TrimSuffix(inner, "]")); err == nil {
			return ""
		}
	}
	if wrong := Subdomain(strings.ToLower(host)); wrong != "" {
		return "is not the host[:port] of a registry"
	}
	return ""
}

func within(prefix, domain string) bool {
	return prefix == domain || strings.HasSuffix(prefix, "."+domain)
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func ends(s string, ok func(byte) bool) bool {
	return s != "" && ok(s[0]) && ok(s[len(s)-1])
}

func all(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func lowerDigit(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

func alphanumeric(c byte) bool { return lowerDigit(c) || c >= 'A' && c <= 'Z' }

func nameByte(c byte) bool { return alphanumeric(c) || c == '-' || c == '_' || c == '.' }
