package fetch

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"time"
)

// Doer sends a request: an *http.Client, or a client that authenticates around one.
type Doer interface {
	Do(req *http.Request) (*http.Response, error)
}

const maxRedirects = 10

// NewHTTP returns the HTTP client that everything here is fetched with. It never
// follows a redirect from https to http, follows one to plain http only where
// PlainAllowed says so, and hands neither Authorization nor Referer to another origin.
func NewHTTP() *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Client{
		Transport: guard{&http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         dialer.DialContext,
			ForceAttemptHTTP2:   true,
			TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 8,
			IdleConnTimeout:     30 * time.Second,
			DisableCompression:  true, // digests are of the bytes as stored
		}},
		CheckRedirect: checkRedirect,
	}
}

// guard holds every request against CheckURL, those too that a library thinks of by
// itself: a registry names the server for its tokens, and may name one without TLS.
type guard struct{ http.RoundTripper }

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := CheckURL(req.URL); err != nil {
		return nil, Permanent(err)
	}
	return g.RoundTripper.RoundTrip(req)
}

func checkRedirect(req *http.Request, via []*http.Request) error {
	last := via[len(via)-1]
	switch {
	case len(via) >= maxRedirects:
		return Permanent(fmt.Errorf("more than %d redirects", maxRedirects))
	case last.URL.Scheme == "https" && req.URL.Scheme != "https":
		return Permanent(fmt.Errorf("redirect from https to %s refused", req.URL.Scheme))
	}
	if err := CheckURL(req.URL); err != nil {
		return Permanent(fmt.Errorf("redirect refused: %w", err))
	}
	// A referer carries the query of a signed URL to the next host.
	req.Header.Del("Referer")
	if req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme {
		req.Header.Del("Authorization")
	}
	return nil
}

// PlainAllowed tells whether host (with or without a port) may be spoken to without
// TLS: the word localhost, or an IP literal that is loopback or private. A name that
// resolves to such an address is not.
func PlainAllowed(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host == "localhost" {
		return true
	}
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && (addr.Unmap().IsLoopback() || addr.Unmap().IsPrivate())
}

// CheckURL refuses what is neither https nor permitted plain http.
func CheckURL(u *url.URL) error {
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("scheme %q is not https", u.Scheme)
	case u.Host == "":
		return errors.New("URL without a host")
	case u.Scheme == "https":
		return nil
	case !PlainAllowed(u.Host):
		return fmt.Errorf("plain http is for localhost and private IP literals only, not for %s", u.Host)
	}
	return nil
}

// secrets finds what an URL may hide: a user, and the query of a signed URL.
var secrets = regexp.MustCompile(`(?i)(https?://)([^\s"'/?#@]*@)?([^\s"'?#]*)(\?[^\s"'#]*)?`)

// Redact returns text with the user part and the query of every URL in it taken out.
func Redact(text string) string {
	return secrets.ReplaceAllStringFunc(text, func(found string) string {
		part := secrets.FindStringSubmatch(found)
		if part[4] != "" {
			part[4] = "?[redacted]"
		}
		return part[1] + part[3] + part[4]
	})
}

// redacted is an error whose text went through Redact.
type redacted struct{ error }

func (e redacted) Error() string { return Redact(e.error.Error()) }
func (e redacted) Unwrap() error { return e.error }
