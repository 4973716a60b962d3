package kube

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"time"
)

// State is how far a certificate request has got.
type State int

// The states.
const (
	Pending  State = iota // nobody has decided
	Approved              // decided, and not signed yet
	Issued
	Denied
	Failed // the signer could not
)

// Request is a certificate request of a kubelet for its client certificate.
type Request struct {
	Name    string
	User    string // who asked: system:bootstrap:<token id> with a bootstrap token
	Subject string // the common name asked for: system:node:<name>
	Created time.Time
	State   State
	Reason  string // what the one who decided said
}

// list is what is read of a CertificateSigningRequestList.
type list struct {
	Items []struct {
		Metadata struct {
			Name    string    `json:"name"`
			Created time.Time `json:"creationTimestamp"`
		} `json:"metadata"`
		Spec struct {
			Request  []byte `json:"request"`
			Username string `json:"username"`
		} `json:"spec"`
		Status struct {
			Certificate []byte      `json:"certificate"`
			Conditions  []condition `json:"conditions"`
		} `json:"status"`
	} `json:"items"`
}

type condition struct {
	Type    string `json:"type"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Requests lists the certificate requests of kubelets, the newest first. Bootstrap tokens
// usually may list them; who may not gets an error of kind Forbidden.
func (c *Client) Requests(ctx context.Context) ([]Request, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	data, err := c.rest.Get().AbsPath(requests).Param("fieldSelector", "spec.signerName=kubernetes.io/kube-apiserver-client-kubelet").Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("list certificate requests: %w", c.kind(err))
	}
	var all list
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("list certificate requests: %w", c.kind(err))
	}
	found := make([]Request, 0, len(all.Items))
	for _, item := range all.Items {
		r := Request{Name: item.Metadata.Name, User: item.Spec.Username, Subject: subject(item.Spec.Request), Created: item.Metadata.Created}
		r.State, r.Reason = state(item.Status.Conditions, len(item.Status.Certificate) > 0)
		found = append(found, r)
	}
	slices.SortStableFunc(found, func(a, b Request) int { return b.Created.Compare(a.Created) })
	return found, nil
}

// state is what the conditions say. Denied and Failed are final; a certificate may be there although it was approved long ago.
func state(conditions []condition, issued bool) (State, string) {
	state, reason := Pending, ""
	for _, c := range conditions {
		said := cmp.Or(c.Message, c.Reason)
		switch c.Type {
		case "Denied":
			return Denied, said
		case "Failed":
			return Failed, said
		case "Approved":
			state, reason = Approved, said
		}
	}
	if issued {
		state = Issued
	}
	return state, reason
}

// subject is the common name that is asked for, "" if it cannot be read.
func subject(data []byte) string {
	block, _ := pem.Decode(data)
	if block == nil {
		return ""
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return ""
	}
	return csr.Subject.CommonName
}
