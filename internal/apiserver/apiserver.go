// Package apiserver asks a Kubernetes API server whether it is there, and says why it is not.
//
// It is what can be said with net/http alone; who needs to read objects uses package
// kube, which classifies its errors here too.
package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Kind is what stands between this host and the API.
type Kind int

// The kinds, in the order in which they get in the way.
const (
	Unknown     Kind = iota
	Unreachable      // no name, no route, refused, timed out, not TLS, or the server is not up (5xx)
	Untrusted        // the certificate is not signed by the CA, is for another name, or is not valid now
	Rejected         // the credential is not known (401)
	Forbidden        // the credential may not do this (403)
)

// Error is a failed request with its kind.
type Error struct {
	Kind   Kind
	Server string
	Err    error
}

func (e *Error) Error() string { return e.Server + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of err: of the *Error in its chain, or what the error of a connection says.
func KindOf(err error) Kind {
	if known, ok := errors.AsType[*Error](err); ok {
		return known.Kind
	}
	if untrusted(err) {
		return Untrusted
	}
	if _, ok := errors.AsType[net.Error](err); ok { // *net.OpError, *net.DNSError, *url.Error, deadlines
		return Unreachable
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok { // not TLS at all
		return Unreachable
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded) {
		return Unreachable
	}
	return Unknown
}

func untrusted(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return true
	}
	_, ok := errors.AsType[x509.CertificateInvalidError](err)
	return ok
}

// OutOfDate tells whether the certificate was refused for its dates: expired, or not
// valid yet. Then the clock of this host is a suspect too.
func OutOfDate(err error) bool {
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	return ok && invalid.Reason == x509.Expired
}

// Answer is what a server said to /readyz.
type Answer struct {
	Status int
	// Skew is how far the clock of this host is ahead of the server's (negative: behind),
	// to the second. Known says whether the server told its time.
	Skew  time.Duration
	Known bool
}

// Server is an API server and what its certificate is held against.
type Server struct {
	URL      string // https://name:port
	CA       []byte // PEM; empty: the CAs of this host
	Insecure bool   // the operator wants no look at the certificate
}

// Readyz asks for /readyz, without a credential. Every answer below 500 means that the
// server is there: who may not see /readyz gets 401 or 403. Errors are *Error. The context
// should have a deadline.
func (s Server) Readyz(ctx context.Context) (Answer, error) {
	security := &tls.Config{InsecureSkipVerify: s.Insecure}
	if len(s.CA) > 0 {
		security.RootCAs = x509.NewCertPool()
		if !security.RootCAs.AppendCertsFromPEM(s.CA) {
			return Answer{}, &Error{Untrusted, s.URL, errors.New("no certificate in the CA")}
		}
	}
	answer, err := get(ctx, s.URL, security)
	if err == nil && answer.Status >= 500 {
		err = fmt.Errorf("answers %d to /readyz", answer.Status)
		return answer, &Error{Unreachable, s.URL, err}
	}
	return answer, err
}

// Clock asks for the server's time without looking at its certificate: the clock of
// this host may be what makes the certificate look wrong. Nothing but the time is
// taken from the answer, and no credential is sent.
func (s Server) Clock(ctx context.Context) (skew time.Duration, known bool) {
	answer, err := get(ctx, s.URL, &tls.Config{InsecureSkipVerify: true})
	return answer.Skew, err == nil && answer.Known
}

func get(ctx context.Context, server string, security *tls.Config) (Answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(server, "/")+"/readyz", nil)
	if err != nil {
		return Answer{}, &Error{Unknown, server, bare(err)}
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: security, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	began := time.Now()
	response, err := transport.RoundTrip(request) // no redirects: an API server sends none
	if err != nil {
		return Answer{}, &Error{KindOf(err), server, bare(err)}
	}
	defer response.Body.Close()
	answer := Answer{Status: response.StatusCode}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		answer.Skew, answer.Known = skew(began, time.Now(), date), true
	}
	return answer, nil
}

// skew compares the server's second with the time between request and answer: the
// server's clock stood somewhere in date to date+1s at some moment of that.
func skew(began, ended, date time.Time) time.Duration {
	switch {
	case began.After(date.Add(time.Second)):
		return began.Sub(date.Add(time.Second)).Round(time.Second)
	case ended.Before(date):
		return ended.Sub(date).Round(time.Second)
	}
	return 0
}

// bare drops the "Get https://…:" of net/http: the server is named anyway.
func bare(err error) error {
	if outer, ok := errors.AsType[*url.Error](err); ok {
		return outer.Err
	}
	return err
}
