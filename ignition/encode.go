package ignition

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Specs are the versions of the Ignition specification in which a document can be written, the default first. What it
// uses is in all of them.
func Specs() []string { return []string{"3.3.0", "3.4.0", "3.5.0"} }

// Ignition is the document in a version of the specification, one of Specs. Compact, the product is one resource
// that is merged; otherwise everything is in the open.
func (d *Document) Ignition(spec string, compact bool) ([]byte, error) {
	if !slices.Contains(Specs(), spec) {
		return nil, fmt.Errorf("ignition spec %q is not known: use one of %s", spec, strings.Join(Specs(), ", "))
	}
	file := ignitionFile{Ignition: ignitionHead{Version: spec}}
	all := d.whole()
	if compact {
		all = d.host
		product, err := encode(ignitionFile{Ignition: ignitionHead{Version: spec}}.with(d.product))
		if err != nil {
			return nil, err
		}
		file.Ignition.Config = &ignitionConfig{Merge: []resource{inline(product)}}
	}
	return encode(file.with(all))
}

func encode(file ignitionFile) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(file)
	return out.Bytes(), err
}

// The part of the specification that is used. The types of Ignition itself write empty objects everywhere, and bring
// an HTTP client along.
type (
	ignitionFile struct {
		Ignition ignitionHead     `json:"ignition"`
		Storage  *ignitionStorage `json:"storage,omitempty"`
		Systemd  *ignitionSystemd `json:"systemd,omitempty"`
	}
	ignitionHead struct {
		Config  *ignitionConfig `json:"config,omitempty"`
		Version string          `json:"version"`
	}
	ignitionConfig struct {
		Merge []resource `json:"merge"`
	}
	ignitionStorage struct {
		Files []ignitionNode `json:"files,omitempty"`
		Links []ignitionNode `json:"links,omitempty"`
	}
	// What an interrupted run of Ignition has placed is placed again: hence overwrite.
	ignitionNode struct {
		Path      string    `json:"path"`
		Overwrite bool      `json:"overwrite"`
		Contents  *resource `json:"contents,omitempty"`
		Mode      int       `json:"mode,omitempty"`
		Target    string    `json:"target,omitempty"`
	}
	resource struct {
		Compression  *string       `json:"compression,omitempty"`
		Source       string        `json:"source"`
		Verification *verification `json:"verification,omitempty"`
	}
	verification struct {
		Hash string `json:"hash"`
	}
	ignitionSystemd struct {
		Units []ignitionUnit `json:"units"`
	}
	ignitionUnit struct {
		Contents string           `json:"contents,omitempty"`
		DropIns  []ignitionDropIn `json:"dropins,omitempty"`
		Enabled  bool             `json:"enabled,omitempty"`
		Name     string           `json:"name"`
	}
	ignitionDropIn struct {
		Contents string `json:"contents"`
		Name     string `json:"name"`
	}
)

// with adds what a part places.
func (f ignitionFile) with(p part) ignitionFile {
	if len(p.files)+len(p.links) > 0 {
		f.Storage = new(ignitionStorage)
	}
	for _, file := range p.files {
		contents := file.Source.resource()
		f.Storage.Files = append(f.Storage.Files, ignitionNode{Path: file.Path, Overwrite: true, Contents: &contents, Mode: file.Mode})
	}
	for _, l := range p.links {
		f.Storage.Links = append(f.Storage.Links, ignitionNode{Path: l.path, Overwrite: true, Target: l.target})
	}
	if len(p.units) > 0 {
		f.Systemd = new(ignitionSystemd)
	}
	for _, u := range p.units {
		written := ignitionUnit{Name: u.name, Contents: u.content, Enabled: u.enabled}
		for _, d := range u.dropIns {
			written.DropIns = append(written.DropIns, ignitionDropIn{d.content, d.name})
		}
		f.Systemd.Units = append(f.Systemd.Units, written)
	}
	return f
}

func (s Source) resource() resource {
	if s.URL == "" {
		return inline(s.Content)
	}
	r := resource{Source: s.URL}
	if s.Gzip {
		r.Compression = new("gzip")
	}
	if s.SHA256 != "" {
		r.Verification = &verification{"sha256-" + s.SHA256}
	}
	return r
}

// inline is content as a data URL, compressed when that is shorter: the choice that Butane makes, and its bytes.
func inline(content []byte) resource {
	best, compression := ";base64,"+base64.StdEncoding.EncodeToString(content), ""
	if plain := len(",") + escapedLen(content); plain <= len(best) {
		best = "," + escape(content)
	}
	if packed := ";base64," + base64.StdEncoding.EncodeToString(pack(content)); len(packed)+len("gzip") < len(best) {
		best, compression = packed, "gzip"
	}
	return resource{Compression: &compression, Source: "data:" + best}
}

func pack(content []byte) []byte {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil { // the level is known, and a buffer takes everything
		panic(err)
	}
	return out.Bytes()
}

// escape writes content as a data URL has it that is not base64 (RFC 2397).
func escape(content []byte) string {
	var out strings.Builder
	out.Grow(escapedLen(content))
	for _, c := range content {
		if stays(c) {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	return out.String()
}

// escapedLen is the length of what escape gives.
func escapedLen(content []byte) int {
	length := 0
	for _, c := range content {
		if length += 3; stays(c) {
			length -= 2
		}
	}
	return length
}

func stays(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.!~*'()", c) >= 0
}
