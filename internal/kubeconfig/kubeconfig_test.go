package kubeconfig

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const canary = "c4n4ry.0123456789abcdef"

// shape is a kubeconfig with a cluster and a user made of the given lines.
func shape(cluster, user string) []byte {
	return []byte("apiVersion: v1\nkind: Config\ncurrent-context: default\nclusters:\n- name: cluster\n  cluster: {" + cluster +
		"}\ncontexts:\n- name: default\n  context: {cluster: cluster, user: kubelet}\nusers:\n- name: kubelet\n  user: {" + user + "}\n")
}

const server = "server: https://api.example.test:6443"

func TestParse(t *testing.T) {
	ca := base64.StdEncoding.EncodeToString([]byte("PEM"))
	for _, test := range []struct {
		name string
		data []byte
		want Kubeconfig
		err  string
	}{
		{"token", shape(server+", certificate-authority-data: "+ca, "token: "+canary), Kubeconfig{Server: "https://api.example.test:6443", CA: []byte("PEM"), Token: canary}, ""},
		{
			"kubelet's own", shape(server, "client-certificate: /var/lib/kubelet/pki/a.pem, client-key: /var/lib/kubelet/pki/a.pem"),
			Kubeconfig{Server: "https://api.example.test:6443", ClientCertFile: "/var/lib/kubelet/pki/a.pem", ClientKeyFile: "/var/lib/kubelet/pki/a.pem"},
			"",
		},
		{"JSON", []byte(`{"current-context":"a","clusters":[{"name":"c","cluster":{"server":"https://x"}}],"contexts":[{"name":"a","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{"exec":{"command":"/x"}}}]}`), Kubeconfig{Server: "https://x", Exec: true}, ""},
		{"not YAML", []byte("\t" + canary), Kubeconfig{}, "not YAML"},
		{"another kind", []byte("clusters: " + canary), Kubeconfig{}, "not YAML"},
		{"empty", nil, Kubeconfig{}, "no current-context"},
		{"dangling context", []byte("current-context: x"), Kubeconfig{}, "not among"},
		{"password in the server", shape("server: \"https://me:"+canary+"@api\"", "token: x"), Kubeconfig{}, "URL without user and query"},
		{"dangling cluster", []byte("current-context: x\ncontexts: [{name: x, context: {cluster: y}}]"), Kubeconfig{}, "cluster of the current context"},
		{"dangling user", []byte("current-context: x\nclusters: [{name: y}]\ncontexts: [{name: x, context: {cluster: y, user: z}}]"), Kubeconfig{}, "user of the current context"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Parse(test.data)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("Parse: %v, want %q", err, test.err)
			}
			if err != nil && strings.Contains(err.Error(), canary) {
				t.Errorf("Parse shows the document: %v", err)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for _, test := range []struct {
		name string
		data []byte
		want []string
	}{
		{"well", shape(server, "token: "+canary), nil},
		{"exec", shape(server, "exec: {command: /opt/login, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}"), nil},
		{"everything is wrong", shape("server: http://api, certificate-authority: /ca", "client-certificate: /c, client-key: /k, tokenFile: /t, token: \""+canary+"\\n\", client-certificate-data: YQ==, exec: {command: login}"), []string{
			"kubeconfig: clusters[0]: server is not an https:// URL",
			"kubeconfig: clusters[0]: certificate-authority names a file; use certificate-authority-data",
			"kubeconfig: users[0]: client-certificate names a file; use client-certificate-data",
			"kubeconfig: users[0]: client-key names a file; use client-key-data",
			"kubeconfig: users[0]: tokenFile names a file; use token",
			"kubeconfig: users[0]: client certificate and key are not a pair",
			"kubeconfig: users[0]: token contains white space",
			"kubeconfig: users[0]: exec.command is not an absolute path",
			"kubeconfig: users[0]: exec needs apiVersion and interactiveMode",
		}},
		{"no credential", shape(server, ""), []string{"kubeconfig: the current context's user has no credential"}},
		{"not one", []byte("[" + canary), []string{"kubeconfig: not YAML or JSON of the form of a kubeconfig"}},
		{"no context", []byte("{}"), []string{"kubeconfig: no current-context"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, problem := range Check(test.data) {
				got = append(got, problem.Error())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if strings.Contains(strings.Join(got, ""), canary) {
				t.Errorf("Check shows the document: %v", got)
			}
		})
	}
}
