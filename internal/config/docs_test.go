package config_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/config"
)

// TestReference holds the table of keys in docs/reference.md against the keys that are read.
func TestReference(t *testing.T) {
	t.Parallel()
	reference, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(reference), "\n## Configuration\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []string
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, key := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			documented = append(documented, key[1])
		}
	}
	read := keys("", reflect.TypeFor[config.File]())
	slices.Sort(documented)
	slices.Sort(read)
	if diff := cmp.Diff(slices.Compact(read), documented); diff != "" {
		t.Errorf("keys (-read +documented):\n%s", diff)
	}
}

// keys are the paths of all values of a type; the parts of Downloads are alike.
func keys(path string, t reflect.Type) []string {
	switch t.Kind() {
	case reflect.Pointer:
		return keys(path, t.Elem())
	case reflect.Slice:
		return keys(path+"[]", t.Elem())
	case reflect.Struct:
	default:
		return []string{path}
	}
	var all []string
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" {
			name = field.Name
		}
		if path == "Downloads" {
			name = "*"
		}
		all = append(all, keys(strings.TrimPrefix(path+"."+name, "."), field.Type)...)
	}
	return all
}
