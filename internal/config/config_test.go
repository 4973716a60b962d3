package config_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/config"
	"unbounded/internal/exit"
	"unbounded/internal/golden"
	"unbounded/internal/record"
)

// The canary of every credential in testdata: no message may show it.
const canary = "cafe0123456789ab"

var host = config.Host{Hostname: "host-1", OSID: "ubuntu", OSVersion: "24.04"}

// TestCases runs every folder of testdata: input.json is parsed; problems and notices are compared.
func TestCases(t *testing.T) {
	t.Parallel()
	inputs, err := filepath.Glob("testdata/*/input.json")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no case found: %v", err)
	}
	for _, input := range inputs {
		dir := filepath.Dir(input)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			c, err := config.Parse(data, host)
			var lines []string
			if err != nil {
				var problems config.Problems
				if !errors.As(err, &problems) || exit.Of(err) != exit.Refused {
					t.Fatalf("Parse() = %v, want Problems with status %d", err, exit.Refused)
				}
				if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), canary) {
					t.Errorf("message has a newline or a secret: %q", err)
				}
				lines = problems.List()
			} else {
				lines = append([]string{"ok"}, c.Notices...)
				golden.Check(t, filepath.Join(dir, "applied.json"), string(c.Applied))
			}
			golden.Check(t, filepath.Join(dir, "report"), strings.Join(lines, "\n")+"\n")
		})
	}
}

// good is a document that has what every node needs, with changes laid over its top level.
func good(t *testing.T, change map[string]any) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/least/input.json")
	if err != nil {
		t.Fatal(err)
	}
	document := map[string]any{}
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	merge(document, change)
	data, err = json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func merge(into, from map[string]any) {
	for key, value := range from {
		inner, ok := value.(map[string]any)
		have, both := into[key].(map[string]any)
		if ok && both {
			merge(have, inner)
			continue
		}
		into[key] = value
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	const token = "abcdef." + canary
	for _, test := range []struct {
		name, token string
		ok          bool
	}{
		{"plain", token, true},
		{"newline", token + "\n", true},
		{"carriage return", token + "\r\n", true},
		{"byte order mark", "\ufeff" + token, true},
		{"spaces", "  " + token + "\t", true},
		{"upper case", "ABCDEF." + canary, false},
		{"inner space", "abcdef. " + canary, false},
		{"inner newline", "abc\ndef." + canary, false},
		{"short", "abcde." + canary, false},
		{"no dot", "abcdef" + canary, false},
		{"long", token + "0", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, err := config.Parse(good(t, map[string]any{"Kubelet": map[string]any{
				"Auth": map[string]any{"BootstrapToken": test.token},
			}}), host)
			if (err == nil) != test.ok {
				t.Fatalf("Parse() = %v, want ok %v", err, test.ok)
			}
			if err != nil {
				if strings.Contains(err.Error(), canary) {
					t.Errorf("the message shows the token: %v", err)
				}
				return
			}
			if string(c.Token) != token {
				t.Errorf("Token is not what was meant")
			}
		})
	}
}

func TestAppliedIsStable(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"least", "all"} {
		data, err := os.ReadFile("testdata/" + name + "/input.json")
		if err != nil {
			t.Fatal(err)
		}
		first, err := config.Parse(data, host)
		if err != nil {
			t.Fatal(err)
		}
		second, err := config.Parse(first.Applied, config.Host{Hostname: "another"})
		if err != nil {
			t.Fatalf("Parse(Applied) = %v", err)
		}
		if diff := cmp.Diff(string(first.Applied), string(second.Applied)); diff != "" {
			t.Errorf("%s: Applied of Applied (-first +second):\n%s", name, diff)
		}
		if first.Identity() != second.Identity() {
			t.Errorf("%s: identity %v became %v", name, first.Identity(), second.Identity())
		}
	}
}

func TestParseIdentity(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, document, problem string
		host                    config.Host
		want                    record.Identity
	}{
		{
			name:     "nothing but the identity",
			document: `{"machinename":" Node-7 ","Cluster":{"Version":"v1.34.0"},"OCIImage":"example.test/a:b","Kubelet":{"ApiServer":"api:6443","Labels":7}}`,
			want:     record.Identity{MachineName: "node-7", KubernetesVersion: "1.34.0", OCIImage: "example.test/a:b", APIServer: "https://api:6443"},
		},
		{
			name:     "defaults",
			document: `{"Cluster":{"Version":"1.34.0"},"Kubelet":{"KubeconfigData":"!"}}`,
			host:     config.Host{Hostname: "Box.Example", OSID: "almalinux", NVIDIA: true},
			want:     record.Identity{MachineName: "box.example", KubernetesVersion: "1.34.0", OCIImage: "ghcr.io/azure/agent-azlinux3-nvidia:v20260626"},
		},
		{
			name: "nothing", document: `{}`, host: config.Host{Hostname: "localhost"},
			problem: "config: MachineName: is missing, and the host's name is none of its own (set MachineName, or give the host a name); " +
				"Cluster.Version: is missing (give the version of Kubernetes, as 1.34.0); " +
				"Kubelet.ApiServer: is missing (give https://host:port of the API server)",
			want: record.Identity{OCIImage: "ghcr.io/azure/agent-ubuntu2404:v20260619"},
		},
		{
			name: "wrong kinds", document: `{"MachineName":7,"Cluster":[],"OCIImage":"a","Kubelet":{"ApiServer":"http://a"}}`,
			problem: "config: MachineName: is a number (give a string); Cluster: is a list (give an object); " +
				"Kubelet.ApiServer: is not an https:// URL (give https://host:port of the API server)",
			want: record.Identity{OCIImage: "a", APIServer: "http://a"},
		},
		{name: "empty", document: " ", problem: "config: document is not JSON: it is empty (mend /etc/unbounded/agent/config.json)"},
		{
			name: "cut off", document: "{\n \"MachineName\": \"a",
			problem: "config: document is not JSON: line 2, column 18: unexpected end of JSON input (mend /etc/unbounded/agent/config.json)",
		},
		{name: "list", document: "[]", problem: "config: document is not a JSON object (mend /etc/unbounded/agent/config.json)"},
		{
			name: "two documents", document: "{}{}",
			problem: "config: document is not JSON: line 1, column 3: invalid character '{' after top-level value (mend /etc/unbounded/agent/config.json)",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			have, err := config.ParseIdentity([]byte(test.document), test.host)
			message := ""
			if err != nil {
				message = err.Error()
			}
			if diff := cmp.Diff(test.problem, message); diff != "" {
				t.Errorf("error (-want +have):\n%s", diff)
			}
			if diff := cmp.Diff(test.want, have); diff != "" {
				t.Errorf("identity (-want +have):\n%s", diff)
			}
		})
	}
}

func TestSizeIsLimited(t *testing.T) {
	t.Parallel()
	_, err := config.Parse(good(t, map[string]any{"Filler": strings.Repeat("x", 1<<20)}), host)
	if exit.Of(err) != exit.Refused {
		t.Errorf("Parse(more than 1 MiB) = %v, want a refusal", err)
	}
}

func TestReadHost(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, content := range map[string]string{
		"proc/sys/kernel/hostname":               "box\n",
		"etc/os-release":                         "NAME=\"X\"\nID=\"azurelinux\"\nVERSION_ID='3.0'\n",
		"dev/nvidia0":                            "",
		"etc/unbounded/agent/registry-auth.json": "{}",
	} {
		name = filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	want := config.Host{Hostname: "box", OSID: "azurelinux", OSVersion: "3.0", NVIDIA: true, RegistryAuth: true}
	if diff := cmp.Diff(want, config.ReadHost(root)); diff != "" {
		t.Errorf("ReadHost (-want +have):\n%s", diff)
	}
	if diff := cmp.Diff(config.Host{}, config.ReadHost(t.TempDir())); diff != "" {
		t.Errorf("ReadHost(empty) (-want +have):\n%s", diff)
	}
}

func FuzzParse(f *testing.F) {
	inputs, err := filepath.Glob("testdata/*/input.json")
	if err != nil || len(inputs) == 0 {
		f.Fatalf("no seed found: %v", err)
	}
	for _, input := range inputs {
		data, err := os.ReadFile(input)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		identity, err := config.ParseIdentity(data, host)
		c, full := config.Parse(data, host)
		if full != nil {
			if exit.Of(full) != exit.Refused || strings.ContainsAny(full.Error(), "\n\r\x00") {
				t.Fatalf("Parse() = %q", full)
			}
			return
		}
		if err != nil || c.Identity() != identity {
			t.Fatalf("identity %v (%v), want %v", identity, err, c.Identity())
		}
		again, err := config.Parse(c.Applied, host)
		if err != nil || string(again.Applied) != string(c.Applied) {
			t.Fatalf("Parse(Applied) = %v", err)
		}
	})
}

func TestSecretsDoNotPrint(t *testing.T) {
	t.Parallel()
	c, err := config.Parse(good(t, map[string]any{"Kubelet": map[string]any{
		"Auth": map[string]any{"BootstrapToken": "abcdef." + canary},
	}}), host)
	if err != nil {
		t.Fatal(err)
	}
	text := c.Token.String() + c.Token.GoString()
	if strings.Contains(text, canary) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(canary))) {
		t.Error("the token prints")
	}
}

func TestImageWithUser(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, image string
		ok          bool
	}{
		{"archive", "https://me:" + canary + "@images.test/node.tar", false},
		{"registry", "me:" + canary + "@registry.test/node:v1", false},
		{"upper case", "HTTPS://me:" + canary + "@images.test/node.tar", false},
		{"digest", "registry.test/node@sha256:" + strings.Repeat("0", 64), true},
		{"path with @", "https://images.test/a@b/node.tar", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := config.ParseIdentity(good(t, map[string]any{"OCIImage": test.image}), host)
			if (err == nil) != test.ok {
				t.Errorf("ParseIdentity() = %v, want ok %v", err, test.ok)
			}
			if err != nil && strings.Contains(err.Error(), canary) {
				t.Errorf("the message shows the password: %v", err)
			}
		})
	}
}
