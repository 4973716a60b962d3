package ignition

import (
	"strings"
	"testing"

	"unbounded/internal/paths"
)

func TestReport(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Input)
		failed bool
		want   []string // a line for each entry has these words
	}{
		{"by URL", func(in *Input) { in.Config = Config{Source: Source{URL: "https://example.test/c", SHA256: hash}} }, false, nil},
		{"credential", func(in *Input) { in.Config = Config{Credential: "x"} }, false, nil},
		{"token inline", func(*Input) {}, false, []string{"warning: config.Kubelet.Auth.BootstrapToken: is a secret"}},
		{"flat token", func(in *Input) {
			in.Config.Inline = []byte(strings.Replace(configuration, `"Auth": { "BootstrapToken": "abcdef.0123456789canary" }`, `"BootstrapToken": "abcdef.0123456789canary"`, 1))
		}, false, []string{"warning: config: Kubelet.BootstrapToken is the older place", "warning: config.Kubelet.BootstrapToken: is a secret"}},
		{"exec environment", func(in *Input) {
			in.Config.Inline = []byte(strings.Replace(configuration, `{ "BootstrapToken": "abcdef.0123456789canary" }`,
				`{"ExecCredential":{"Command":"/x","APIVersion":"client.authentication.k8s.io/v1","InteractiveMode":"Never","Env":[{"Name":"A","Value":"abcdef.0123456789canary"}]}}`, 1))
		}, false, []string{"config.Kubelet.Auth.ExecCredential.Env: is a secret"}},
		{"signed image", func(in *Input) { in.RootImage = "https://example.test/i.tar.gz?sig=abcdef.0123456789canary" }, false, []string{
			"BootstrapToken: is a secret", "warning: config.OCIImage: has a user or a query",
		}},
		{"signed download", func(in *Input) {
			in.Config.Inline = []byte(strings.Replace(configuration, `"OCIImage"`, `"Downloads":{"CNI":{"URL":"https://example.test/%s?sig=abcdef.0123456789canary"}}, "OCIImage"`, 1))
		}, false, []string{"BootstrapToken: is a secret", "warning: config.Downloads.CNI: has a user or a query"}},
		{"no configuration", func(in *Input) { in.Config = Config{} }, true, []string{"error: config: is missing"}},
		{"two configurations", func(in *Input) { in.Config.Credential = "x" }, true, []string{"error: config: is given in more than one way"}},
		{"empty configuration", func(in *Input) { in.Config.Inline = []byte{} }, true, []string{"error: config: "}},
		{"wrong configuration", func(in *Input) {
			in.Config.Inline = []byte(strings.Replace(configuration, `"ClusterDNS": "10.0.0.10",`, `"ClusterDNS": "dns",`, 1))
		}, true, []string{`error: config.Cluster.ClusterDNS: "dns" is not an IP address`}},
		{"image of a configuration that is not here", func(in *Input) {
			in.Config, in.RootImage = Config{Credential: "x"}, "a/b:1"
		}, true, []string{"error: root-image: cannot be set"}},
		{"image for rubbish", func(in *Input) { in.Config.Inline, in.RootImage = []byte("canary"), "a/b:1" }, true, []string{"error: config: is not a JSON document"}},
		{"credential name", func(in *Input) { in.Config = Config{Credential: "a b"} }, true, []string{"error: config-credential: "}},
		{"configuration without hash", func(in *Input) { in.Config = Config{Source: Source{URL: "http://example.test/c"}} }, false, []string{
			"warning: config-url: has no SHA-256", "warning: config-url: is fetched over plain http",
		}},
		{"configuration from a signed URL", func(in *Input) {
			in.Config = Config{Source: Source{URL: "https://example.test/c?sig=canary", SHA256: hash}}
		}, false, []string{"warning: config-url: has a user or a query"}},
		{"configuration from a file URL", func(in *Input) { in.Config = Config{Source: Source{URL: "file:///c"}} }, true, []string{"error: config-url: is not fetched"}},
		{"wrong hash", func(in *Input) {
			in.Config = Config{Source: Source{URL: "https://example.test/c", SHA256: "abc"}}
		}, true, []string{"error: config-url: has a SHA-256 that is none"}},
		{"prefix in the image", func(in *Input) { in.Prefix = "/usr/local" }, true, []string{`error: prefix: "/usr/local" cannot hold`, "BootstrapToken"}},
		{"prefix with a space", func(in *Input) { in.Prefix = "/opt/a b" }, true, []string{`error: prefix: "/opt/a b"`, "BootstrapToken"}},
		{"prefix with a specifier", func(in *Input) { in.Prefix = "/opt/%i" }, true, []string{`error: prefix:`, "BootstrapToken"}},
		{"prefix /", func(in *Input) { in.Prefix = "/" }, true, []string{`error: prefix:`, "BootstrapToken"}},
		{"relative prefix", func(in *Input) { in.Prefix = "opt" }, true, []string{`error: prefix:`, "BootstrapToken"}},
		{"a program is missing", func(in *Input) { in.Programs = in.Programs[1:] }, true, []string{"BootstrapToken", "error: programs.unboundedctl: is missing"}},
		{"a program is there twice", func(in *Input) { in.Programs = append(in.Programs, in.Programs[1]) }, true, []string{"BootstrapToken", "error: programs.unbounded-"}},
		{"an empty program", func(in *Input) { in.Programs[1].Source = Source{} }, true, []string{"BootstrapToken", "is empty"}},
		{"a program without hash", func(in *Input) { in.Programs[1].Source.SHA256 = "" }, false, []string{"BootstrapToken", "has no SHA-256"}},
		{"file below /run", func(in *Input) { in.Files = []File{{"/run/x", 0o644, Source{}}} }, true, []string{"BootstrapToken", "error: files[/run/x]: "}},
		{"relative file", func(in *Input) { in.Files = []File{{"../x", 0o644, Source{}}} }, true, []string{"BootstrapToken", "error: files[../x]: "}},
		{"setuid file", func(in *Input) { in.Files = []File{{"/etc/x", 0o4755, Source{}}} }, true, []string{"BootstrapToken", "error: files[/etc/x]: "}},
		{"file twice", func(in *Input) { in.Files = []File{{"/etc/x", 0o644, Source{}}, {"/etc/x", 0o644, Source{}}} }, true, []string{"BootstrapToken", "is taken"}},
		{"our own configuration as a file", func(in *Input) { in.Files = []File{{paths.Config, 0o600, Source{}}} }, true, []string{"BootstrapToken", "is taken"}},
		{"our own unit as a file", func(in *Input) { in.Files = []File{{paths.SystemdDir + "/" + paths.BootUnit, 0o644, Source{}}} }, true, []string{"BootstrapToken", "is taken"}},
		{"our own program as a file", func(in *Input) { in.Files = []File{{"/opt/unbounded/slots/blue/x", 0o644, Source{}}} }, true, []string{"BootstrapToken", "is taken"}},
		{"private key", func(in *Input) {
			in.Files = []File{{"/etc/x", 0o600, Source{Content: []byte("-----BEGIN RSA PRIVATE KEY-----\ncanary")}}}
		}, false, []string{"BootstrapToken", "warning: files[/etc/x]: is a secret"}},
		{"registry credentials", func(in *Input) {
			in.Files = []File{{paths.RegistryAuth, 0o600, Source{Content: []byte(`{"auths":{}}`)}}}
		}, false, []string{"BootstrapToken", "warning: files[/etc/unbounded/agent/registry-auth.json]: is a secret"}},
		{"boot-complete", func(in *Input) { in.BootComplete = true }, false, []string{"BootstrapToken", "warning: boot-complete: "}},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := Input{Prefix: paths.DefaultRoot, Programs: programs(remote), Config: Config{Inline: []byte(configuration)}}
			test.change(&in)
			d, report := Build(in)
			if report.Failed() != test.failed || (d == nil) != test.failed {
				t.Errorf("failed: %v, document: %v, want failed: %v", report.Failed(), d != nil, test.failed)
			}
			if len(report) != len(test.want) {
				t.Errorf("%d entries, want %d:\n%s", len(report), len(test.want), report)
			}
			for i, want := range test.want {
				if i < len(report) && !strings.Contains(report[i].String(), want) {
					t.Errorf("entry %d = %q, want %q in it", i, report[i], want)
				}
			}
			if strings.Contains(report.String(), "canary") {
				t.Errorf("a secret is shown:\n%s", report)
			}
		})
	}
}

func TestUnknownForms(t *testing.T) {
	d := build(t, cases()["credential of the usual name"])
	if _, err := d.Ignition("2.3.0", true); err == nil || !strings.Contains(err.Error(), "3.3.0") {
		t.Errorf("Ignition(2.3.0) = %v, want the specs that there are", err)
	}
	if _, err := d.Butane("rhel", "3.3.0", true); err == nil || !strings.Contains(err.Error(), "flatcar") {
		t.Errorf("Butane(rhel) = %v, want the variants that there are", err)
	}
}
