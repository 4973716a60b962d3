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
	file := form{Ignition: &head{Version: spec}}
	if err := d.fill(&file, spec, compact, Source.resource); err != nil {
		return nil, err
	}
	return encode(file)
}

// fill puts the document into a form, in which written gives the contents of files.
func (d *Document) fill(file *form, spec string, compact bool, written func(Source) resource) error {
	all := d.whole()
	if compact {
		all = d.host
		inner := form{Ignition: &head{Version: spec}}
		inner.add(d.product, Source.resource)
		product, err := encode(inner)
		if err != nil {
			return err
		}
		if file.Ignition == nil {
			file.Ignition = new(head)
		}
		file.Ignition.Config = &headConfig{Merge: []resource{written(Source{Content: product})}}
	}
	file.add(all, written)
	return nil
}

func encode(file form) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(file)
	return out.Bytes(), err
}

// The part of the specification that is used, as Ignition has it (json) and as Butane has it (yaml). The types of Ignition
// itself write empty objects everywhere, and bring an HTTP client along.
type (
	form struct {
		Variant  string   `json:"-" yaml:"variant"`
		Version  string   `json:"-" yaml:"version"`
		Ignition *head    `json:"ignition" yaml:"ignition,omitempty"`
		Storage  *storage `json:"storage,omitempty" yaml:"storage,omitempty"`
		Systemd  *systemd `json:"systemd,omitempty" yaml:"systemd,omitempty"`
	}
	head struct {
		Config  *headConfig `json:"config,omitempty" yaml:"config,omitempty"`
		Version string      `json:"version" yaml:"-"`
	}
	headConfig struct {
		Merge []resource `json:"merge" yaml:"merge"`
	}
	storage struct {
		Files []node `json:"files,omitempty" yaml:"files,omitempty"`
		Links []node `json:"links,omitempty" yaml:"links,omitempty"`
	}
	// What an interrupted run of Ignition has placed is placed again: hence overwrite.
	node struct {
		Path      string    `json:"path" yaml:"path"`
		Overwrite bool      `json:"overwrite" yaml:"overwrite"`
		Mode      octal     `json:"mode,omitempty" yaml:"mode,omitempty"`
		Target    string    `json:"target,omitempty" yaml:"target,omitempty"`
		Contents  *resource `json:"contents,omitempty" yaml:"contents,omitempty"`
	}
	resource struct {
		Source       string        `json:"source" yaml:"source,omitempty"`
		Inline       string        `json:"-" yaml:"inline,omitempty"` // Butane's, in place of Source
		Compression  *string       `json:"compression,omitempty" yaml:"compression,omitempty"`
		Verification *verification `json:"verification,omitempty" yaml:"verification,omitempty"`
	}
	verification struct {
		Hash string `json:"hash" yaml:"hash"`
	}
	systemd struct {
		Units []unit `json:"units" yaml:"units"`
	}
	unit struct {
		Name     string   `json:"name" yaml:"name"`
		Enabled  bool     `json:"enabled,omitempty" yaml:"enabled,omitempty"`
		Contents string   `json:"contents,omitempty" yaml:"contents,omitempty"`
		DropIns  []dropIn `json:"dropins,omitempty" yaml:"dropins,omitempty"`
	}
	dropIn struct {
		Name     string `json:"name" yaml:"name"`
		Contents string `json:"contents" yaml:"contents"`
	}
)

// add puts in what a part places.
func (f *form) add(p part, written func(Source) resource) {
	if len(p.files)+len(p.links) > 0 {
		f.Storage = new(storage)
	}
	for _, file := range p.files {
		contents := written(file.Source)
		f.Storage.Files = append(f.Storage.Files, node{Path: file.Path, Overwrite: true, Mode: octal(file.Mode), Contents: &contents})
	}
	for _, l := range p.links {
		f.Storage.Links = append(f.Storage.Links, node{Path: l.path, Overwrite: true, Target: l.target})
	}
	if len(p.units) > 0 {
		f.Systemd = &systemd{p.units}
	}
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
