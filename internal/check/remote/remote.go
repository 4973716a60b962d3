// Package remote holds the checks of what a node needs from elsewhere: the API server, the image, the node
// binaries, and what the configuration says about how to get at them.
//
// They send no credential but to registries, and download nothing that is large.
package remote

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"time"

	"unbounded/internal/apiserver"
	"unbounded/internal/check"
	"unbounded/internal/config"
	"unbounded/internal/fetch"
	"unbounded/internal/kubeconfig"
)

// Server is the API server that a checked configuration leads to. The error says what
// is wrong with an embedded kubeconfig.
func Server(c *config.Config) (apiserver.Server, error) {
	if len(c.Kubeconfig) == 0 {
		return apiserver.Server{URL: c.APIServer, CA: c.CA}, nil
	}
	k, err := kubeconfig.Parse(c.Kubeconfig)
	return apiserver.Server{URL: k.Server, CA: k.CA, Insecure: k.Insecure}, err
}

// Configuration reports what config.Parse said: every problem, or every remark.
func Configuration(c *config.Config, err error) check.Check {
	return check.Check{Name: "agent-config", Look: func(context.Context) []check.Result {
		var results []check.Result
		problems, isList := errors.AsType[config.Problems](err)
		switch {
		case isList:
			for _, problem := range problems {
				results = append(results, check.Fail(check.Never, problem.Path, "%s", problem))
			}
			return results
		case err != nil:
			return []check.Result{check.Fail(check.Never, "configuration", "%v", err)}
		}
		for _, notice := range c.Notices {
			results = append(results, check.Warn("configuration", "%s", notice))
		}
		if len(results) > 0 {
			return results
		}
		return []check.Result{check.Pass("configuration", "node %s, Kubernetes %s", c.NodeName, c.Version)}
	}}
}

// Credentials looks at what the kubelet is to authenticate with, without using it: that
// the server takes a token is only known when the kubelet joins.
func Credentials(c *config.Config, now time.Time) check.Check {
	return check.Check{Name: "cluster-credentials", Look: func(context.Context) []check.Result {
		var results []check.Result
		if len(c.CA) > 0 {
			results = append(results, authorities(c.CA, now)...)
		}
		for _, problem := range kubeconfigProblems(c) {
			results = append(results, check.Fail(check.Never, "Kubelet.KubeconfigData", "%v", problem).Fix("correct Kubelet.KubeconfigData"))
		}
		if len(results) > 0 {
			return results
		}
		return []check.Result{check.Pass("Kubelet.Auth", "CA and credential are well-formed")}
	}}
}

func kubeconfigProblems(c *config.Config) []error {
	if len(c.Kubeconfig) == 0 {
		return nil
	}
	return kubeconfig.Check(c.Kubeconfig)
}

// authorities checks the CA's certificates. A bundle may hold old ones beside the current.
func authorities(data []byte, now time.Time) []check.Result {
	const target = "Cluster.CaCertBase64"
	const fix = "write the CA of the cluster there: base64 of its PEM certificate"
	var results []check.Result
	valid := 0
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			results = append(results, check.Fail(check.Never, target, "%s holds something that is not a certificate", target).Fix(fix))
		case now.After(certificate.NotAfter):
			results = append(results, check.Warn(target, "%s: certificate %q has expired on %s", target, certificate.Subject.CommonName, day(certificate.NotAfter)))
		case now.Before(certificate.NotBefore):
			results = append(results, check.Warn(target, "%s: certificate %q is not valid before %s by the clock of this host", target, certificate.Subject.CommonName, day(certificate.NotBefore)))
		default:
			valid++
		}
	}
	if valid == 0 && len(results) > 0 {
		results = append(results, check.Fail(check.May, target, "%s holds no certificate that is valid now", target).Fix("%s, or set the clock of this host", fix))
	}
	return results
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// Clocks that differ: from skewNoted it is worth a word; at skewBreaks certificates that
// the cluster signs (they are valid from five minutes before) look as if from the future.
const (
	skewNoted  = 10 * time.Second
	skewBreaks = 5 * time.Minute
)

// API asks the API server whether it is there and what time it has.
func API(server apiserver.Server) check.Check {
	const name, clock = "api-server-reachable", "clock-skew"
	return check.Check{Name: name, Look: func(ctx context.Context) []check.Result {
		answer, err := server.Readyz(ctx)
		switch apiserver.KindOf(err) {
		case apiserver.Untrusted:
			result := check.Fail(check.May, server.URL, "the certificate of the API server is not trusted: %v", err).
				Fix("Cluster.CaCertBase64 must hold the CA that signed it, and Kubelet.ApiServer a name that is in it")
			if !apiserver.OutOfDate(err) {
				return []check.Result{result}
			}
			results := []check.Result{result.Fix("renew the certificate of the API server, or set the clock of this host")}
			if skew, known := server.Clock(ctx); known {
				results = append(results, clocks(server.URL, skew).As(clock))
			}
			return results
		case apiserver.Unknown:
			if err == nil {
				break
			}
			fallthrough
		default:
			return []check.Result{check.Fail(check.Waits, server.URL, "the API server is not reachable: %v", err).
				Fix("check Kubelet.ApiServer, the name service and the firewalls between this host and the API server")}
		}
		results := []check.Result{check.Pass(server.URL, "answers %d to /readyz", answer.Status)}
		if answer.Known {
			results = append(results, clocks(server.URL, answer.Skew).As(clock))
		}
		return results
	}}
}

func clocks(server string, skew time.Duration) check.Result {
	way := "ahead of"
	if skew < 0 {
		way = "behind"
	}
	const fix = "let this host synchronise its clock (timedatectl set-ntp true)"
	switch off := skew.Abs(); {
	case off >= skewBreaks:
		return check.Fail(check.May, "clock", "the clock of this host is %v %s that of %s: from %v on, certificates that the cluster has just signed are not valid here", off, way, server, skewBreaks).Fix(fix)
	case off >= skewNoted:
		return check.Warn("clock", "the clock of this host is %v %s that of %s; from %v on it cannot join", off, way, server, skewBreaks).Fix(fix)
	}
	return check.Pass("clock", "agrees with that of %s", server)
}

// Download is something that a later stage fetches, and that can be asked for without fetching it.
type Download struct {
	Check  string // oci-image-reachable, …
	Target string // what it is, without a signature
	// Have is why it need not be fetched any more; empty: it is needed.
	Have  func() string
	Probe func(ctx context.Context) (size int64, err error) // -1: the server does not say
	// After may add what follows from the size: 0 not needed, -1 unknown, also after a failed Probe. May be nil.
	After func(size int64, failed bool) []check.Result
}

// Reachable asks for a download.
func Reachable(d Download) check.Check {
	return check.Check{Name: d.Check, Look: func(ctx context.Context) []check.Result {
		result, size := d.ask(ctx)
		results := []check.Result{result}
		if d.After != nil {
			results = append(results, d.After(size, result.Severity == check.Error)...)
		}
		return results
	}}
}

func (d Download) ask(ctx context.Context) (check.Result, int64) {
	if have := d.Have(); have != "" {
		return check.Pass(d.Target, "not needed: %s", have), 0
	}
	size, err := d.Probe(ctx)
	switch {
	case err != nil:
		return failed(d.Target, err), -1
	case size < 0:
		return check.Pass(d.Target, "can be fetched"), size
	}
	return check.Pass(d.Target, "can be fetched (%.1f MiB)", float64(size)/(1<<20)), size
}

func failed(target string, err error) check.Result {
	text := err.Error()
	if !strings.Contains(text, target) {
		text = target + ": " + text
	}
	if apiserver.KindOf(err) == apiserver.Untrusted {
		return check.Fail(check.May, target, "%s", text).Fix("let this host trust the CA of that server, and set its clock")
	}
	retry := check.May
	if apiserver.KindOf(err) == apiserver.Unreachable || temporary(err) {
		retry = check.Waits
	}
	return check.Fail(retry, target, "%s", text).Fix("check the reference, its credentials and the network")
}

// temporary tells whether a server's answer may be another one later.
func temporary(err error) bool {
	status, ok := errors.AsType[*fetch.StatusError](err)
	return ok && fetch.TransientStatus(status.Code)
}
