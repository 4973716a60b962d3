package oci

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"unbounded/internal/fetch"
)

// Kind is where an image comes from.
type Kind int

// The kinds of references.
const (
	Registry Kind = iota // host/repository[:tag][@sha256:…]
	Layout               // oci-layout://dir[:tag]
	Archive              // https://host/path.tar[.gz]
)

// Reference names an image.
type Reference struct {
	Kind   Kind
	Host   string // Registry: with port
	Repo   string
	Tag    string // Registry: "latest" when neither tag nor digest is given; Layout: "" is the only one
	SHA256 string // hex; wins over Tag
	Dir    string // Layout
	URL    string // Archive

	text string
}

var (
	tagForm    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	digestForm = regexp.MustCompile(`^sha256:([a-f0-9]{64})$`)
	hostForm   = regexp.MustCompile(`^(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?$`)
	repoForm   = regexp.MustCompile(`^[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*$`)
)

// String is the reference without a query, for messages and records.
func (r Reference) String() string {
	if r.Kind == Archive {
		text, _, _ := strings.Cut(r.text, "?")
		return fetch.Redact(text)
	}
	return fetch.Redact(r.text)
}

// Parse reads a reference. Plain http is no form of it: it follows from the host.
func Parse(text string) (Reference, error) {
	var r Reference
	var err error
	switch {
	case strings.HasPrefix(text, "oci-layout://"):
		r, err = parseLayout(strings.TrimPrefix(text, "oci-layout://"))
	case strings.Contains(text, "://"):
		r, err = parseArchive(text)
	default:
		r, err = parseRegistry(text)
	}
	r.text = text
	if err != nil {
		return r, fmt.Errorf("image reference %q: %w", r.String(), err)
	}
	return r, nil
}

func parseRegistry(text string) (Reference, error) {
	r := Reference{Kind: Registry}
	host, rest, found := strings.Cut(text, "/")
	if !found || (!strings.ContainsAny(host, ".:") && host != "localhost") {
		return r, errors.New("begins with no registry host; write for example docker.io/library/name")
	}
	r.Host = host
	if !hostForm.MatchString(host) {
		return r, fmt.Errorf("%q is not a registry host", host)
	}
	rest, digest, pinned := strings.Cut(rest, "@")
	if pinned {
		found := digestForm.FindStringSubmatch(digest)
		if found == nil {
			return r, fmt.Errorf("%q is not a sha256 digest", digest)
		}
		r.SHA256 = found[1]
	}
	r.Repo, r.Tag, found = strings.Cut(rest, ":")
	switch {
	case !repoForm.MatchString(r.Repo):
		return r, fmt.Errorf("%q is not a repository", r.Repo)
	case found && !tagForm.MatchString(r.Tag):
		return r, fmt.Errorf("%q is not a tag", r.Tag)
	case !found && !pinned:
		r.Tag = "latest"
	}
	return r, nil
}

func parseLayout(rest string) (Reference, error) {
	r := Reference{Kind: Layout, Dir: rest}
	if at := strings.LastIndex(rest, ":"); at > strings.LastIndex(rest, "/") {
		r.Dir, r.Tag = rest[:at], rest[at+1:]
		if !tagForm.MatchString(r.Tag) {
			return r, fmt.Errorf("%q is not a tag", r.Tag)
		}
	}
	if !filepath.IsAbs(r.Dir) || filepath.Clean(r.Dir) != strings.TrimRight(r.Dir, "/") {
		return r, fmt.Errorf("%q is not a clean absolute folder", r.Dir)
	}
	return r, nil
}

func parseArchive(text string) (Reference, error) {
	r := Reference{Kind: Archive, URL: text}
	u, err := url.Parse(text)
	if err != nil {
		return r, errors.New("not a URL")
	}
	if err := fetch.CheckURL(u); err != nil {
		return r, err
	}
	if name := path.Base(u.Path); !strings.HasSuffix(name, ".tar") && !strings.HasSuffix(name, ".tar.gz") {
		return r, errors.New("a URL must name a .tar or .tar.gz archive of an OCI layout")
	}
	return r, nil
}
