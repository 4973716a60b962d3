package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// StatusError is an answer that is not the wanted one.
type StatusError struct {
	Code       int
	RetryAfter time.Duration // what the server asks for; 0 when it does not
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("answered %d %s", e.Code, http.StatusText(e.Code))
}

func statusError(resp *http.Response) error {
	return &StatusError{Code: resp.StatusCode, RetryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now())}
}

// retryAfter reads both forms of the header: seconds and an HTTP date.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(value); err == nil {
		return max(0, time.Duration(seconds)*time.Second)
	}
	if date, err := http.ParseTime(value); err == nil {
		return max(0, date.Sub(now))
	}
	return 0
}

var errStalled = errors.New("no byte came")

type permanent struct{ error }

func (e permanent) Unwrap() error { return e.error }

// Permanent marks err as one that trying again cannot help.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

// transient tells whether trying again may help. Everything that the network does may
// pass; only what is known to stay is permanent, since retries are bounded anyway.
func transient(err error) bool {
	if as[permanent](err) || as[*tls.CertificateVerificationError](err) || as[x509.HostnameError](err) ||
		as[x509.UnknownAuthorityError](err) || as[x509.CertificateInvalidError](err) || errors.Is(err, http.ErrSchemeMismatch) {
		return false
	}
	var status *StatusError
	if errors.As(err, &status) {
		return TransientStatus(status.Code)
	}
	return true
}

// TransientStatus tells whether an HTTP status may pass by itself.
func TransientStatus(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return code >= 500 && code != http.StatusNotImplemented
}

func as[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// Bounds of trying again. Eight tries without progress take about one minute.
const (
	defaultTries = 8
	minDelay     = 500 * time.Millisecond
	maxDelay     = 20 * time.Second
	maxAsked     = 5 * time.Minute // a server that asks for more has failed
)

// delay is how long to wait after the given number of failures in a row, at least what the server asked for.
func delay(failures int, err error) (time.Duration, error) {
	d := min(maxDelay, minDelay<<min(failures-1, 10))
	d = d/2 + rand.N(d/2+1)
	if status, ok := errors.AsType[*StatusError](err); ok && status.RetryAfter > 0 {
		if status.RetryAfter > maxAsked {
			return 0, fmt.Errorf("%w, and asks to wait %s", err, status.RetryAfter.Round(time.Second))
		}
		d = max(d, status.RetryAfter)
	}
	return d, nil
}

// retry calls try until it succeeds, fails for good, or has failed too often without progress.
func (c *Client) retry(ctx context.Context, what string, try func(context.Context) (progress bool, err error)) error {
	what = Redact(what)
	tries := c.Tries
	if tries == 0 {
		tries = defaultTries
	}
	for failures := 0; ; {
		progress, err := try(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("get %s: %w", what, context.Cause(ctx))
		case !transient(err):
			return redacted{fmt.Errorf("get %s: %w", what, plainError(err))}
		}
		if progress {
			failures = 0
		}
		failures++
		if failures >= tries {
			return redacted{fmt.Errorf("get %s: %w (tried %d times)", what, plainError(err), tries)}
		}
		d, asked := delay(failures, err)
		if asked != nil {
			return redacted{fmt.Errorf("get %s: %w", what, asked)}
		}
		c.status("get %s: %s; next try in %s", what, Redact(plainError(err).Error()), d.Round(100*time.Millisecond))
		if err := c.pause(ctx, d); err != nil {
			return fmt.Errorf("get %s: %w", what, err)
		}
	}
}

func (c *Client) pause(ctx context.Context, d time.Duration) error {
	if c.wait != nil {
		return c.wait(ctx, d)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *Client) status(format string, args ...any) {
	if c.Status != nil {
		c.Status(format, args...)
	}
}
