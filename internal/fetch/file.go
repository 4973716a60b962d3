package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"unbounded/internal/durable"
)

// Want is a file to fetch.
type Want struct {
	Name   string // for messages; "": URL
	URL    string
	Header http.Header
	Size   int64  // -1 when unknown
	SHA256 string // hex; "" when nobody knows it: then nothing is kept over two calls
}

// ErrContent is in the chain when the server gave other bytes than the digest or size promises.
var ErrContent = errors.New("not the promised content")

// enough is how far a try must get to count as progress.
const enough = 256 << 10

// File makes path the verified file. What is there already at partial is gone on from,
// and stays there when the fetch fails. Both are in folders that exist.
func (c *Client) File(ctx context.Context, want Want, partial, path string) (err error) {
	if want.Name == "" {
		want.Name = Redact(want.URL)
	}
	file, err := os.OpenFile(partial, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	d := &download{client: c, want: want, file: file, hash: sha256.New()}
	if err := d.load(); err != nil {
		return fmt.Errorf("read %s: %w", partial, err)
	}
	if err := d.run(ctx); err != nil {
		if errors.Is(err, ErrContent) {
			err = errors.Join(err, os.Remove(partial))
		}
		return err
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", partial, err)
	}
	err, file = file.Close(), nil
	if err != nil {
		return fmt.Errorf("close %s: %w", partial, err)
	}
	if err := durable.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return durable.Rename(partial, path)
}

type download struct {
	client  *Client
	want    Want
	file    *os.File
	hash    hash.Hash
	offset  int64  // bytes in file and hash
	best    int64  // the furthest that any try got
	etag    string // of the bytes in file
	noRange bool   // the server's ranges are not to be trusted
	again   bool   // the content was wrong once
}

// load hashes what an earlier call left.
func (d *download) load() error {
	info, err := d.file.Stat()
	if err != nil {
		return err
	}
	if d.want.SHA256 == "" || (d.want.Size >= 0 && info.Size() > d.want.Size) {
		return d.restart()
	}
	d.offset, err = io.Copy(d.hash, d.file)
	d.best = d.offset
	return err
}

func (d *download) restart() error {
	d.moved(-d.offset)
	d.offset, d.etag = 0, ""
	d.hash.Reset()
	if err := d.file.Truncate(0); err != nil {
		return Permanent(err)
	}
	_, err := d.file.Seek(0, io.SeekStart)
	return err
}

func (d *download) moved(n int64) {
	if d.client.Moved != nil && n != 0 {
		d.client.Moved(n)
	}
}

func (d *download) run(ctx context.Context) error {
	return d.client.retry(ctx, d.want.Name, func(ctx context.Context) (bool, error) {
		if d.want.Size < 0 || d.offset < d.want.Size {
			if err := d.try(ctx); err != nil {
				progress := d.offset >= d.best+enough
				d.best = max(d.best, d.offset)
				return progress, d.wrong(err)
			}
		}
		return true, d.wrong(d.check())
	})
}

// wrong starts over after the first wrong content (a bad prefix shows only in the
// final digest) and gives up after the second.
func (d *download) wrong(err error) error {
	if !errors.Is(err, ErrContent) {
		return err
	}
	if d.again {
		return Permanent(err)
	}
	d.again, d.noRange = true, true
	return errors.Join(err, d.restart())
}

func (d *download) check() error {
	if d.want.Size >= 0 && d.offset != d.want.Size {
		return fmt.Errorf("%w: %d bytes, want %d", ErrContent, d.offset, d.want.Size)
	}
	if got := hex.EncodeToString(d.hash.Sum(nil)); d.want.SHA256 != "" && got != d.want.SHA256 {
		return fmt.Errorf("%w: sha256 is %s, want %s", ErrContent, got, d.want.SHA256)
	}
	return nil
}

// try is one request and its body.
func (d *download) try(ctx context.Context) error {
	header := maps.Clone(d.want.Header)
	if header == nil {
		header = http.Header{}
	}
	if d.offset > 0 && (d.noRange || (d.want.SHA256 == "" && d.etag == "")) {
		if err := d.restart(); err != nil {
			return err
		}
	}
	if d.offset > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", d.offset))
		if d.etag != "" {
			header.Set("If-Range", d.etag)
		}
	}
	resp, stop, err := d.client.do(ctx, http.MethodGet, d.want.URL, header)
	if err != nil {
		return err
	}
	defer stop()
	if err := d.accept(resp); err != nil || resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return err
	}
	if tag := resp.Header.Get("Etag"); !strings.HasPrefix(tag, "W/") {
		d.etag = tag
	}
	return d.copy(resp.Body)
}

// accept checks the header of an answer and sets the offset that its body starts at.
func (d *download) accept(resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusOK:
		if d.offset > 0 {
			if err := d.restart(); err != nil {
				return err
			}
		}
		if d.want.Size >= 0 && resp.ContentLength >= 0 && resp.ContentLength != d.want.Size {
			return fmt.Errorf("%w: the server announces %d bytes, want %d", ErrContent, resp.ContentLength, d.want.Size)
		}
	case http.StatusPartialContent:
		from, total, ok := contentRange(resp.Header.Get("Content-Range"))
		if !ok || from != d.offset || (d.want.Size >= 0 && total >= 0 && total != d.want.Size) {
			d.noRange = true
			return fmt.Errorf("asked for bytes from %d, got %q", d.offset, resp.Header.Get("Content-Range"))
		}
	case http.StatusRequestedRangeNotSatisfiable:
		if d.offset > 0 && d.check() == nil && d.want.SHA256 != "" {
			return nil // all of it was there, and the size is not known
		}
		d.noRange = true
		return errors.New("the server refuses to go on from what is there")
	default:
		return statusError(resp)
	}
	return nil
}

func (d *download) copy(body io.Reader) error {
	if d.want.Size >= 0 {
		body = io.LimitReader(body, d.want.Size-d.offset+1)
	}
	buffer := make([]byte, 64<<10)
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			if _, err := d.file.Write(buffer[:n]); err != nil {
				return Permanent(err)
			}
			_, _ = d.hash.Write(buffer[:n]) // never fails
			d.offset += int64(n)
			d.moved(int64(n))
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// contentRange reads "bytes 5-9/10"; total is -1 for "*".
func contentRange(value string) (from, total int64, ok bool) {
	rest, found := strings.CutPrefix(value, "bytes ")
	span, size, cut := strings.Cut(rest, "/")
	first, _, dash := strings.Cut(span, "-")
	if !found || !cut || !dash {
		return 0, 0, false
	}
	from, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	if size == "*" {
		return from, -1, true
	}
	total, err = strconv.ParseInt(size, 10, 64)
	return from, total, err == nil
}
