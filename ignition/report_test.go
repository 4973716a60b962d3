package ignition

import (
	"strings"
	"testing"

	"unbounded/internal/paths"
)

// files are empty files.
func files(paths ...string) []File {
	var all []File
	for _, path := range paths {
		all = append(all, File{path, 0o644, Source{}})
	}
	return all
}

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
		}, false, []string{"config.Kubelet.Auth.ExecCredential.Env[0].Value: is a secret"}},
		{"signed image", func(in *Input) { in.RootImage = "https://example.test/i.tar.gz?sig=abcdef.0123456789canary" }, false, []string{
			"BootstrapToken: is a secret", "warning: config.OCIImage: has a user or a query",
		}},
		{"signed download", func(in *Input) {
			in.Config.Inline = []byte(strings.Replace(configuration, `"OCIImage"`, `"Downloads":{"CNI":{"URL":"https://example.test/%s?sig=abcdef.0123456789canary"}}, "OCIImage"`, 1))
		}, false, []string{"warning: config.Downloads.CNI.URL: has a user or a query", "BootstrapToken: is a secret"}},
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
		{"file twice", func(in *Input) { in.Files = []File{{"/etc/x", 0o644, Source{}}, {"/etc/x", 0o644, Source{}}} }, true, []string{"BootstrapToken", "error: files[/etc/x]: is in the way of /etc/x"}},
		{"our own configuration as a file", func(in *Input) { in.Files = []File{{paths.Config, 0o600, Source{}}} }, true, []string{"BootstrapToken", "is in the way of"}},
		{"our own unit as a file", func(in *Input) { in.Files = []File{{paths.SystemdDir + "/" + paths.BootUnit, 0o644, Source{}}} }, true, []string{"BootstrapToken", "is in the way of"}},
		{"our own program as a file", func(in *Input) { in.Files = []File{{"/opt/unbounded/slots/blue/x", 0o644, Source{}}} }, true, []string{"BootstrapToken", "is taken"}},
		{"file above another", func(in *Input) { in.Files = files("/etc/x", "/etc/x/y") }, true, []string{
			"BootstrapToken", "error: files[/etc/x]: is in the way of /etc/x/y", "error: files[/etc/x/y]: is in the way of /etc/x",
		}},
		{"file above ours", func(in *Input) { in.Files = files("/etc/unbounded") }, true, []string{"BootstrapToken", "is in the way of /etc/unbounded/agent/config.json"}},
		{"file below our link", func(in *Input) { in.Files = files("/opt/unbounded/current/x") }, true, []string{"BootstrapToken", "is taken"}},
		{"file in place of a link's folder", func(in *Input) { in.Files = files("/etc/systemd/system/multi-user.target.wants") }, true, []string{"BootstrapToken", "is in the way of"}},
		{"file in the state", func(in *Input) { in.Files = files("/var/lib/unbounded/agent/complete") }, true, []string{"BootstrapToken", "is taken"}},
		{"file in place of a folder of the system", func(in *Input) { in.Files = files("/etc", "/var/lib") }, true, []string{
			"BootstrapToken", "error: files[/etc]: is not a path", "error: files[/var/lib]: is not a path",
		}},
		{"file with a name that hides", func(in *Input) { in.Files = files("/etc/\x1b[31mx\n") }, true, []string{"BootstrapToken", `error: files["/etc/\x1b[31mx\n"]: is not a path`}},
		{"file without a mode", func(in *Input) { in.Files = []File{{"/etc/x", 0, Source{}}} }, true, []string{"BootstrapToken", "has a mode that cannot be given: 0000"}},
		{"large file", func(in *Input) { in.Files = []File{{"/etc/x", 0o644, Source{Content: make([]byte, maxFile+1)}}} }, true, []string{"BootstrapToken", "at most 8388608 go into"}},
		{"drop-in of a unit of ours", func(in *Input) { in.Files = files("/etc/systemd/system/unbounded-rootfs@.service.d/proxy.conf") }, false, []string{"BootstrapToken"}},
		{"credential as a file", func(in *Input) {
			in.Files = []File{{"/etc/credstore/unbounded.config", 0o600, Source{Content: []byte("canary")}}}
		}, false, []string{"BootstrapToken", "warning: files[/etc/credstore/unbounded.config]: is a secret"}},
		{"configuration as a file", func(in *Input) {
			in.Files = []File{{"/etc/x", 0o600, Source{Content: []byte(configuration)}}}
		}, false, []string{"BootstrapToken", "warning: files[/etc/x]: is a secret"}},
		{"kubeconfig as a file", func(in *Input) {
			in.Files = []File{{"/etc/x", 0o600, Source{Content: []byte("users:\n- user:\n    token: canary\n")}}}
		}, false, []string{"BootstrapToken", "warning: files[/etc/x]: is a secret"}},
		{"docker's credentials as a file", func(in *Input) {
			in.Files = []File{{"/etc/docker/config.json", 0o600, Source{Content: []byte(`{"auths": {"r": {"auth": "canary"}}}`)}}}
		}, false, []string{"BootstrapToken", "warning: files[/etc/docker/config.json]: is a secret"}},
		{"argument of a plugin", func(in *Input) {
			in.Config.Inline = []byte(strings.Replace(configuration, `{ "BootstrapToken": "abcdef.0123456789canary" }`,
				`{"ExecCredential":{"command":"/x","args":["--client-secret=canary","--cluster=x"],"apiVersion":"client.authentication.k8s.io/v1","interactiveMode":"Never"}}`, 1))
		}, false, []string{"warning: config.Kubelet.Auth.ExecCredential.args[0]: may hold a secret"}},
		{"secret that this release does not know", func(in *Input) {
			in.Config.Inline = []byte(strings.Replace(configuration, `"OCIImage"`, `"Cloud":{"ClientSecret":"canary"}, "OCIImage"`, 1))
		}, false, []string{"keys that this release does not know", "warning: config.Cloud.ClientSecret: is a secret", "BootstrapToken"}},
		{"header of kubelet", func(in *Input) {
			in.Config.Inline = []byte(strings.Replace(configuration, `"ApiServer"`,
				`"Configuration":{"staticPodURL":"https://u:canary@e.test/x","staticPodURLHeader":{"Authorization":["canary"]}}, "ApiServer"`, 1))
		}, false, []string{"BootstrapToken", "config.Kubelet.Configuration.staticPodURL: has a user", "config.Kubelet.Configuration.staticPodURLHeader.Authorization[0]: is a secret"}},
		{"byte order mark", func(in *Input) {
			in.Config.Inline, in.RootImage = append([]byte("\ufeff"), in.Config.Inline...), "r.test/other:1"
		}, false, []string{"BootstrapToken"}},
		{"blank image", func(in *Input) { in.RootImage = " " }, true, []string{"error: root-image: is blank", "BootstrapToken"}},
		{"credential ..", func(in *Input) { in.Config = Config{Credential: ".."} }, true, []string{"error: config-credential: "}},
		{"no JSON", func(in *Input) { in.Config.Inline = []byte("canary") }, true, []string{"(mend the file that --config names)"}},
		{"prefix in the state", func(in *Input) { in.Prefix = "/var/lib/unbounded/x" }, true, []string{"error: prefix:", "BootstrapToken"}},
		{"prefix in /etc", func(in *Input) { in.Prefix = "/etc/unbounded" }, true, []string{"error: prefix:", "BootstrapToken"}},
		{"prefix that is gone after a boot", func(in *Input) { in.Prefix = "/var/run/unbounded" }, true, []string{"error: prefix:", "BootstrapToken"}},
		{"long prefix", func(in *Input) { in.Prefix = "/opt/" + strings.Repeat("x", 300) }, true, []string{"error: prefix:", "BootstrapToken"}},
		{"top-level prefix", func(in *Input) { in.Prefix = "/opt" }, true, []string{"error: prefix:", "BootstrapToken"}},
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
