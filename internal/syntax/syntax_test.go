package syntax_test

import (
	"strings"
	"testing"

	"unbounded/internal/syntax"
)

func TestChecks(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 64)
	for _, test := range []struct {
		name       string
		check      func(string) string
		good, evil []string
	}{
		{
			"Subdomain", syntax.Subdomain,
			[]string{"a", "a-1.b.c9", strings.Repeat("a.", 126) + "a"},
			[]string{"", "A", "a_b", "-a", "a-", "a..b", ".a", "a.", long, strings.Repeat("a.", 127) + "a", "a\n", "é"},
		},
		{"LabelKey", syntax.LabelKey, []string{"a", "A_b.c-d", "a.test/b"}, []string{"", "/a", "a/", "a/b/c", "A/b", "a b", long, "-a", "a,b", "a=b"}},
		{"LabelValue", syntax.LabelValue, []string{"", "a", "A_b.c-d"}, []string{"a b", "-a", "a-", long, "a,b", "a=b", "a\n"}},
		{
			"NodeLabel", syntax.NodeLabel,
			[]string{"a", "example.test/role", "kubernetes.io/arch", "node.kubernetes.io/x", "x.node.kubernetes.io/y", "notkubernetes.io/x", "topology.kubernetes.io/zone"},
			[]string{"node-role.kubernetes.io/worker", "kubernetes.io/x", "k8s.io/x", "a.k8s.io/x"},
		},
		{
			"Taint", syntax.Taint,
			[]string{"a=b:NoSchedule", "a:NoExecute", "a=:PreferNoSchedule", "x.test/a=b:NoSchedule"},
			[]string{"", "a", "a=b", ":NoSchedule", "a=b:noschedule", "a=b c:NoSchedule", "a=b=c:NoSchedule"},
		},
		{
			"BootstrapToken", syntax.BootstrapToken,
			[]string{"abcdef.0123456789abcdef"},
			[]string{"", "abcdef", "abcdef.0123456789abcde", "abcdef.0123456789abcdefg", "ABCDEF.0123456789abcdef", "abcde.f0123456789abcdef", "abcdef.0123456789abcde\n"},
		},
		{
			"KubernetesVersion", syntax.KubernetesVersion,
			[]string{"1.34.0", "1.35.0-rc.1", "1.34.0+k3s1"},
			[]string{"", "1.34", "v1.34.0", "1.34.0.0", "1.034.0", "1.x.0", "1.34.0-", "1.34.0-a/b", "1.34.0-a_b", "latest", "1.34.-1"},
		},
		{"Version", syntax.Version, []string{"1", "2.1.8", "1.0.0-rc.1+b"}, []string{"", "../1", "1/2", "-1", "1..2", "1 2", long + "a", "%s"}},
		{"Path", syntax.Path, []string{"/", "/a", "/a/b.c", "/a/..b"}, []string{"", "a", "/a/", "/a//b", "/a/../b", "/a/.", "/a b", "/a:b", "/a\nb", `/a\b`, `/a"b`, "//"}},
		{
			"Device", syntax.Device,
			[]string{"/dev/a", "/dev/a/b", "char-ipvtap", "block-*", "char-usb/x"},
			[]string{"", "/dev", "/dev/", "/etc/passwd", "/dev/../etc/passwd", "char-", "block- x", "char-a:b"},
		},
		{
			"RegistryHost", syntax.RegistryHost,
			[]string{"_default", "docker.io", "localhost:5000", "10.0.0.1:5000", "[fd00::1]:5000", "[fd00::1]"},
			[]string{"", "..", "a/b", "a:b", "a:99999", "https://a", "[x]", "a b", "/"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, s := range test.good {
				if wrong := test.check(s); wrong != "" {
					t.Errorf("%q %s", s, wrong)
				}
			}
			for _, s := range test.evil {
				wrong := test.check(s)
				if wrong == "" || len(s) > 8 && strings.Contains(wrong, s) {
					t.Errorf("%q: %q, want what is wrong, without the text", s, wrong)
				}
			}
		})
	}
}
