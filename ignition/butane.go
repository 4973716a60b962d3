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
	file := form{Variant: variant, Version: versions[spec]}
	if err := d.fill(&file, spec, compact, Source.butane); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(file); err != nil {
		return nil, err
	}
	return out.Bytes(), encoder.Close()
}

// octal is a mode as people write it. Butane warns of decimal ones.
type octal int

func (o octal) MarshalYAML() (any, error) {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: "0" + strconv.FormatInt(int64(o), 8)}, nil
}

func (s Source) butane() resource {
	// The YAML library writes a block that begins with a tab in a form that no reader takes.
	if s.URL == "" && utf8.Valid(s.Content) && len(s.Content) > 0 && !strings.ContainsRune(" \t\r\n", rune(s.Content[0])) {
		return resource{Inline: string(s.Content)}
	}
	return s.resource()
}
