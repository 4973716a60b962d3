package ignition

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// variants are the Butane variants, and which version of each is translated to which version of the specification.
func variants() map[string]map[string]string {
	return map[string]map[string]string{
		"flatcar": {"3.3.0": "1.0.0", "3.4.0": "1.1.0"},
		"fcos":    {"3.3.0": "1.4.0", "3.4.0": "1.5.0", "3.5.0": "1.6.0"},
	}
}

// Variants are the Butane variants in which a document can be written.
func Variants() []string { return slices.Sorted(maps.Keys(variants())) }

// Butane is the document in Butane's form: `butane --strict` makes of it what Ignition gives for the same spec.
func (d *Document) Butane(variant, spec string, compact bool) ([]byte, error) {
	versions := variants()[variant]
	if versions == nil {
		return nil, fmt.Errorf("butane variant %q is not known: use one of %s", variant, strings.Join(Variants(), ", "))
	}
	if versions[spec] == "" {
		return nil, fmt.Errorf("butane variant %s has no stable version for ignition spec %s: use one of %s",
			variant, spec, strings.Join(slices.Sorted(maps.Keys(versions)), ", "))
	}
	file := butaneFile{Variant: variant, Version: versions[spec]}
	all := d.whole()
	if compact {
		all = d.host
		product, err := encode(ignitionFile{Ignition: ignitionHead{Version: spec}}.with(d.product))
		if err != nil {
			return nil, err
		}
		file.Ignition = &butaneHead{}
		file.Ignition.Config.Merge = []butaneResource{{Inline: string(product)}}
	}
	file.with(all)
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(file); err != nil {
		return nil, err
	}
	return out.Bytes(), encoder.Close()
}

type (
	butaneFile struct {
		Variant  string         `yaml:"variant"`
		Version  string         `yaml:"version"`
		Ignition *butaneHead    `yaml:"ignition,omitempty"`
		Storage  *butaneStorage `yaml:"storage,omitempty"`
		Systemd  *butaneSystemd `yaml:"systemd,omitempty"`
	}
	butaneHead struct {
		Config struct {
			Merge []butaneResource `yaml:"merge"`
		} `yaml:"config"`
	}
	butaneStorage struct {
		Files []butaneNode `yaml:"files,omitempty"`
		Links []butaneNode `yaml:"links,omitempty"`
	}
	butaneNode struct {
		Path      string          `yaml:"path"`
		Overwrite bool            `yaml:"overwrite"`
		Mode      octal           `yaml:"mode,omitempty"`
		Target    string          `yaml:"target,omitempty"`
		Contents  *butaneResource `yaml:"contents,omitempty"`
	}
	butaneResource struct {
		Source       string        `yaml:"source,omitempty"`
		Inline       string        `yaml:"inline,omitempty"`
		Compression  *string       `yaml:"compression,omitempty"`
		Verification *verification `yaml:"verification,omitempty"`
	}
	butaneSystemd struct {
		Units []butaneUnit `yaml:"units"`
	}
	butaneUnit struct {
		Name     string         `yaml:"name"`
		Enabled  bool           `yaml:"enabled,omitempty"`
		Contents string         `yaml:"contents,omitempty"`
		DropIns  []butaneDropIn `yaml:"dropins,omitempty"`
	}
	butaneDropIn struct {
		Name     string `yaml:"name"`
		Contents string `yaml:"contents"`
	}
)

// octal is a mode as people write it. Butane warns of decimal ones.
type octal int

func (o octal) MarshalYAML() (any, error) {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: "0" + strconv.FormatInt(int64(o), 8)}, nil
}

func (f *butaneFile) with(p part) {
	if len(p.files)+len(p.links) > 0 {
		f.Storage = new(butaneStorage)
	}
	for _, file := range p.files {
		contents := file.Source.butane()
		f.Storage.Files = append(f.Storage.Files, butaneNode{Path: file.Path, Overwrite: true, Mode: octal(file.Mode), Contents: &contents})
	}
	for _, l := range p.links {
		f.Storage.Links = append(f.Storage.Links, butaneNode{Path: l.path, Overwrite: true, Target: l.target})
	}
	if len(p.units) > 0 {
		f.Systemd = new(butaneSystemd)
	}
	for _, u := range p.units {
		written := butaneUnit{Name: u.name, Contents: u.content, Enabled: u.enabled}
		for _, d := range u.dropIns {
			written.DropIns = append(written.DropIns, butaneDropIn{d.name, d.content})
		}
		f.Systemd.Units = append(f.Systemd.Units, written)
	}
}

func (s Source) butane() butaneResource {
	// The YAML library writes a block that begins with a tab in a form that no reader takes.
	if s.URL == "" && utf8.Valid(s.Content) && len(s.Content) > 0 && !strings.ContainsRune(" \t\r\n", rune(s.Content[0])) {
		return butaneResource{Inline: string(s.Content)}
	}
	r := s.resource()
	return butaneResource{Source: r.Source, Compression: r.Compression, Verification: r.Verification}
}
