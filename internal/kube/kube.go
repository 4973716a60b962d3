// Package kube is the client of the Kubernetes API, as small as client-go can be linked.
//
// It is the only package that imports client-go. Requests and errors are client-go's; what is
// read of an object is a struct of ours: the API's own types, of one group or of all, would
// add 4 MB and more. Every call has a deadline, and every error is an *apiserver.Error,
// whose kind says what is in the way.
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"unbounded/internal/apiserver"
)

// limit is for each call but a watch.
const limit = 15 * time.Second

// Client speaks to one API server with one credential.
type Client struct {
	Server string
	// Machine is the machine-id that a Node must report to count; empty: any. It tells the Node of
	// this installation from one that an earlier machine of the same name left behind.
	Machine string
	rest    *rest.RESTClient
}

// report is what is read of a Node.
type report struct {
	Status struct {
		NodeInfo struct {
			MachineID string `json:"machineID"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

// counts tells whether the Node in data is the one that is waited for.
func (c *Client) counts(data []byte) (bool, error) {
	if c.Machine == "" {
		return true, nil
	}
	var n report
	err := json.Unmarshal(data, &n)
	return n.Status.NodeInfo.MachineID == c.Machine, err
}

// ErrForeignCredential is in the chain when a kubeconfig's credential comes from a program, or from a file
// that has to be read again and again: both are inside the machine, where we do not run anything.
var ErrForeignCredential = errors.New("its credential comes from a program or a token file inside the machine")

// FromKubeconfig returns the client that the current context of data stands for. Certificates and keys that it
// names by file are read by read, since they are inside a machine. Program is what the
// server's log shows. Nothing is sent yet.
func FromKubeconfig(data []byte, read func(path string) ([]byte, error), program string) (*Client, error) {
	raw, err := clientcmd.Load(data)
	if err != nil {
		return nil, errors.New("kubeconfig: not YAML or JSON of the form of a kubeconfig") // the parser quotes the document
	}
	if err := inline(raw, read); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	config, err := clientcmd.NewDefaultClientConfig(*raw, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if config.ExecProvider != nil || config.AuthProvider != nil {
		return nil, fmt.Errorf("kubeconfig: %w", ErrForeignCredential)
	}
	return open(config, program)
}

// inline puts the content of the files that the current context uses in the place of their names.
func inline(raw *clientcmdapi.Config, read func(path string) ([]byte, error)) error {
	current := raw.Contexts[raw.CurrentContext]
	if current == nil {
		return errors.New("the current context is missing")
	}
	replace := func(path *string, data *[]byte) (err error) {
		if *path == "" {
			return nil
		}
		*data, err = read(*path)
		*path = ""
		return err
	}
	var errs []error
	if cluster := raw.Clusters[current.Cluster]; cluster != nil {
		errs = append(errs, replace(&cluster.CertificateAuthority, &cluster.CertificateAuthorityData))
	}
	if user := raw.AuthInfos[current.AuthInfo]; user != nil {
		errs = append(errs, replace(&user.ClientCertificate, &user.ClientCertificateData), replace(&user.ClientKey, &user.ClientKeyData))
		if user.TokenFile != "" {
			errs = append(errs, ErrForeignCredential)
		}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func open(config *rest.Config, program string) (*Client, error) {
	config.UserAgent = program
	config.WarningHandler = rest.NoWarnings{}
	config.QPS = -1               // we ask seldom; no limiter of its own
	scheme := runtime.NewScheme() // of what errors come in
	version := schema.GroupVersion{Version: "v1"}
	meta.AddToGroupVersion(scheme, version)
	scheme.AddUnversionedTypes(version, &meta.Status{})
	config.GroupVersion = &version
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", config.Host, err)
	}
	return &Client{Server: config.Host, rest: client}, nil
}

// nodes and requests are where the API has them.
const (
	nodes    = "/api/v1/nodes"
	requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
)

// HasNode tells whether the Node name exists, and is that of Machine.
func (c *Client) HasNode(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	data, err := c.rest.Get().AbsPath(nodes, name).Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get node %s: %w", name, c.kind(err))
	}
	counts, err := c.counts(data)
	if err != nil {
		return false, fmt.Errorf("get node %s: %w", name, c.kind(err))
	}
	return counts, nil
}

// AwaitNode returns when the Node name exists, and is that of Machine. The error is the context's, or that of a watch which
// could not begin or broke off; servers close one every few minutes. A kubelet may watch its own Node only.
func (c *Client) AwaitNode(ctx context.Context, name string) error {
	events, err := c.rest.Get().AbsPath(nodes).Param("watch", "true").Param("fieldSelector", "metadata.name="+name).Stream(ctx)
	if err != nil {
		return fmt.Errorf("watch node %s: %w", name, c.kind(err))
	}
	defer events.Close()
	for decoder := json.NewDecoder(events); ; {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		err := decoder.Decode(&event)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
		case err == nil && event.Type == "ERROR":
			var status meta.Status
			if err = json.Unmarshal(event.Object, &status); err == nil {
				err = apierrors.FromObject(&status)
			}
		case err == nil && event.Type != "DELETED": // the first event of a Node that is there is ADDED
			var counts bool
			if counts, err = c.counts(event.Object); counts {
				return nil
			}
		}
		if err != nil {
			return fmt.Errorf("watch node %s: %w", name, c.kind(err))
		}
	}
}

// kind classifies an error of client-go.
func (c *Client) kind(err error) error {
	kind := apiserver.KindOf(err)
	switch {
	case apierrors.IsUnauthorized(err):
		kind = apiserver.Rejected
	case apierrors.IsForbidden(err):
		kind = apiserver.Forbidden
	case apierrors.IsServerTimeout(err), apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err), apierrors.IsTooManyRequests(err), apierrors.IsTimeout(err):
		kind = apiserver.Unreachable
	}
	if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err // the request's URL says nothing that the caller does not
	}
	return &apiserver.Error{Kind: kind, Server: c.Server, Err: err}
}
