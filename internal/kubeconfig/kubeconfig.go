// Package kubeconfig reads a kubeconfig without a Kubernetes client library, and checks one that is to
// become kubelet's as it is.
//
// No error shows a part of the document: it is full of credentials.
package kubeconfig

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"

	"sigs.k8s.io/yaml"
)

// Kubeconfig is what the current context of a kubeconfig leads to.
type Kubeconfig struct {
	Server   string
	CA       []byte // PEM; empty: in CAFile, or the system's
	CAFile   string // inside the machine
	Insecure bool   // the server's certificate is not looked at
	// One of these, or none: certificates are PEM.
	Token          string
	ClientCert     []byte
	ClientKey      []byte
	ClientCertFile string // in kubelet's own kubeconfig: paths inside the machine
	ClientKeyFile  string
	Exec           bool
}

type document struct {
	CurrentContext string `json:"current-context"`
	Clusters       []struct {
		Name    string `json:"name"`
		Cluster struct {
			Server   string `json:"server"`
			CA       []byte `json:"certificate-authority-data"`
			CAFile   string `json:"certificate-authority"`
			Insecure bool   `json:"insecure-skip-tls-verify"`
		} `json:"cluster"`
	} `json:"clusters"`
	Contexts []struct {
		Name    string `json:"name"`
		Context struct {
			Cluster string `json:"cluster"`
			User    string `json:"user"`
		} `json:"context"`
	} `json:"contexts"`
	Users []struct {
		Name string `json:"name"`
		User user   `json:"user"`
	} `json:"users"`
}

type user struct {
	Cert      []byte `json:"client-certificate-data"`
	CertFile  string `json:"client-certificate"`
	Key       []byte `json:"client-key-data"`
	KeyFile   string `json:"client-key"`
	Token     string `json:"token"`
	TokenFile string `json:"tokenFile"`
	Exec      *struct {
		Command         string `json:"command"`
		APIVersion      string `json:"apiVersion"`
		InteractiveMode string `json:"interactiveMode"`
	} `json:"exec"`
}

// Parse reads what the current context leads to.
func Parse(data []byte) (Kubeconfig, error) {
	d, err := read(data)
	if err != nil {
		return Kubeconfig{}, err
	}
	return d.resolve()
}

func read(data []byte) (*document, error) {
	d := new(document)
	if err := yaml.Unmarshal(data, d); err != nil {
		// The parser's own words quote the document.
		return nil, errors.New("kubeconfig: not YAML or JSON of the form of a kubeconfig")
	}
	return d, nil
}

func (d *document) resolve() (Kubeconfig, error) {
	if d.CurrentContext == "" {
		return Kubeconfig{}, errors.New("kubeconfig: no current-context")
	}
	for _, c := range d.Contexts {
		if c.Name == d.CurrentContext {
			return d.join(c.Context.Cluster, c.Context.User)
		}
	}
	return Kubeconfig{}, errors.New("kubeconfig: current-context is not among the contexts")
}

func (d *document) join(cluster, name string) (Kubeconfig, error) {
	var k Kubeconfig
	var hasCluster, hasUser bool
	for _, c := range d.Clusters {
		if c.Name == cluster {
			k.Server, k.CA, k.CAFile, k.Insecure = c.Cluster.Server, c.Cluster.CA, c.Cluster.CAFile, c.Cluster.Insecure
			hasCluster = true
			break
		}
	}
	for _, u := range d.Users {
		if u.Name == name {
			k.Token, k.Exec = u.User.Token, u.User.Exec != nil
			k.ClientCert, k.ClientKey = u.User.Cert, u.User.Key
			k.ClientCertFile, k.ClientKeyFile = u.User.CertFile, u.User.KeyFile
			hasUser = true
			break
		}
	}
	switch {
	case !hasCluster:
		return Kubeconfig{}, errors.New("kubeconfig: the cluster of the current context is missing")
	case !hasUser:
		return Kubeconfig{}, errors.New("kubeconfig: the user of the current context is missing")
	}
	// Messages name the server.
	if u, err := url.Parse(k.Server); err != nil || u.User != nil || u.RawQuery != "" {
		return Kubeconfig{}, errors.New("kubeconfig: the server of the current context is not a URL without user and query")
	}
	return k, nil
}

// Check returns everything that keeps data from being kubelet's kubeconfig as it is: it
// must need no other file, reach every server by https, and carry a credential. Nil is well.
func Check(data []byte) []error {
	d, err := read(data)
	if err != nil {
		return []error{err}
	}
	var problems []error
	add := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("kubeconfig: "+format, args...))
	}
	for i, c := range d.Clusters {
		if u, err := url.Parse(c.Cluster.Server); err != nil || u.Scheme != "https" || u.Hostname() == "" {
			add("clusters[%d]: server is not an https:// URL", i)
		}
		if c.Cluster.CAFile != "" {
			add("clusters[%d]: certificate-authority names a file; use certificate-authority-data", i)
		}
	}
	for i, u := range d.Users {
		for _, problem := range u.User.problems() {
			add("users[%d]: %s", i, problem)
		}
	}
	k, err := d.resolve()
	if err != nil {
		return append(problems, err)
	}
	if !k.Exec && k.Token == "" && len(k.ClientCert) == 0 {
		add("the current context's user has no credential")
	}
	return problems
}

// problems are those of an entry, whether the current context uses it or not.
func (u *user) problems() []string {
	var problems []string
	for _, file := range []struct{ key, value, instead string }{
		{"client-certificate", u.CertFile, "client-certificate-data"},
		{"client-key", u.KeyFile, "client-key-data"},
		{"tokenFile", u.TokenFile, "token"},
	} {
		if file.value != "" {
			problems = append(problems, file.key+" names a file; use "+file.instead)
		}
	}
	if len(u.Cert) > 0 || len(u.Key) > 0 {
		if _, err := tls.X509KeyPair(u.Cert, u.Key); err != nil {
			problems = append(problems, "client certificate and key are not a pair")
		}
	}
	if strings.ContainsAny(u.Token, " \r\n\t") {
		problems = append(problems, "token contains white space")
	}
	if u.Exec == nil {
		return problems
	}
	if !path.IsAbs(u.Exec.Command) {
		problems = append(problems, "exec.command is not an absolute path")
	}
	if u.Exec.APIVersion == "" || u.Exec.InteractiveMode == "" {
		problems = append(problems, "exec needs apiVersion and interactiveMode")
	}
	return problems
}
