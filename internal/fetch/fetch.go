// Package fetch gets the bytes of a URL: a small document into memory, a large one into a verified file.
//
// What the network does wrong is tried again, bounded and jittered: refused and reset
// connections, early ends, names that do not resolve, timeouts, 5xx, 429 with its
// Retry-After. A body that stalls is cut. A file goes on where it broke off, when the
// server can; a server that answers a range with the whole starts over. The file
// appears under its name only when its size and digest are right, and is synced.
//
// No error of this package shows the query or the user part of a URL.
//
// The package is longer than others because trying again, going on and verifying decide about each other:
// requests (fetch.go), files (file.go), bounds of trying (retry.go), what may be spoken to (http.go).
package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Client fetches. Only HTTP must be set.
type Client struct {
	HTTP   Doer
	Tries  int                              // without progress; 0: a good default
	Stall  time.Duration                    // longest time without a byte; 0: 30 s
	Status func(format string, args ...any) // what is being waited for
	Moved  func(bytes int64)                // bytes of files that came; negative when some are thrown away

	wait func(context.Context, time.Duration) error // tests
}

// Document is a small answer.
type Document struct {
	Body   []byte
	Header http.Header
}

// Bytes gets the document at address, refusing more than limit bytes.
func (c *Client) Bytes(ctx context.Context, address string, header http.Header, limit int64) (Document, error) {
	var doc Document
	err := c.retry(ctx, address, func(ctx context.Context) (bool, error) {
		resp, stop, err := c.do(ctx, http.MethodGet, address, header)
		if err != nil {
			return false, err
		}
		defer stop()
		if resp.StatusCode != http.StatusOK {
			return false, statusError(resp)
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
		switch {
		case err != nil:
			return false, err
		case int64(len(body)) > limit:
			return false, Permanent(fmt.Errorf("more than %d bytes", limit))
		}
		doc = Document{Body: body, Header: resp.Header}
		return true, nil
	})
	return doc, err
}

// Probe tells whether address could be fetched, without fetching it, and its size (-1 when the server does not say).
func (c *Client) Probe(ctx context.Context, address string, header http.Header) (size int64, err error) {
	size = -1
	err = c.retry(ctx, address, func(ctx context.Context) (bool, error) {
		resp, stop, err := c.do(ctx, http.MethodHead, address, header)
		if err != nil {
			return false, err
		}
		stop()
		if resp.StatusCode >= 400 && !TransientStatus(resp.StatusCode) {
			// A URL signed for GET answers HEAD with 403.
			one := header.Clone()
			if one == nil {
				one = http.Header{}
			}
			one.Set("Range", "bytes=0-0")
			if resp, stop, err = c.do(ctx, http.MethodGet, address, one); err != nil {
				return false, err
			}
			stop()
		}
		switch resp.StatusCode {
		case http.StatusOK:
			size = resp.ContentLength
		case http.StatusPartialContent:
			if _, total, ok := contentRange(resp.Header.Get("Content-Range")); ok {
				size = total
			}
		default:
			return false, statusError(resp)
		}
		return true, nil
	})
	return size, err
}

// do sends one request. The body of the answer fails with errStalled when no byte
// comes for the stall time, the wait for the header included. stop must be called.
func (c *Client) do(ctx context.Context, method, address string, header http.Header) (*http.Response, func(), error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stall := c.Stall
	if stall == 0 {
		stall = 30 * time.Second
	}
	timer := time.AfterFunc(stall, func() { cancel(fmt.Errorf("%w for %s", errStalled, stall)) })
	end := func() { timer.Stop(); cancel(nil) }
	req, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		end()
		return nil, nil, Permanent(err)
	}
	if err := CheckURL(req.URL); err != nil {
		end()
		return nil, nil, Permanent(err)
	}
	req.Header.Set("User-Agent", "unbounded-bootstrap")
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		err = cause(ctx, err)
		end()
		return nil, nil, err
	}
	body := resp.Body
	resp.Body = &watched{Reader: body, ctx: ctx, touch: func() { timer.Reset(stall) }}
	return resp, func() { end(); _ = body.Close() }, nil
}

// cause prefers the reason of our own cancel over what the transport makes of it.
func cause(ctx context.Context, err error) error {
	if reason := context.Cause(ctx); errors.Is(reason, errStalled) {
		return reason
	}
	return err
}

// watched is a body under the watchdog.
type watched struct {
	io.Reader
	ctx   context.Context //nolint:containedctx // asked only why a read failed
	touch func()
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if n > 0 {
		w.touch()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = cause(w.ctx, err)
	}
	return n, err
}

func (w *watched) Close() error { return nil }

// plainError takes the method and URL of net/http off an error: the caller names the URL.
func plainError(err error) error {
	if wrapped, ok := err.(*url.Error); ok { //nolint:errorlint // deeper ones are of other URLs
		err = wrapped.Err
	}
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("%w: the server speaks plain http, which is for localhost and private IP literals only", err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the connection broke off: %w", err)
	}
	return err
}
