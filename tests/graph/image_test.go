package graph

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/ignition"
	"unbounded/internal/paths"
	"unbounded/units"
)

// imagePrefix is where an image-based host has the programs in this test.
const imagePrefix = "/var/opt/unbounded"

// TestSameGraph compares what a package host and an image-based host get. The graph that systemd resolves is the same to
// the line, golden files included; the golden file image.golden has every line in which unit files differ. What the
// stages do differently they decide on the host: prerequisites, which validates where nothing can be installed.
func TestSameGraph(t *testing.T) {
	dir, names := lay(t)
	placed := imageUnits(t)
	if diff := cmp.Diff(names, slices.Sorted(maps.Keys(placed))); diff != "" {
		t.Fatalf("unit files (-package host +image-based host):\n%s", diff)
	}
	host, err := units.Rendered(paths.DefaultRoot)
	if err != nil {
		t.Fatal(err)
	}
	var differences strings.Builder
	for _, name := range names {
		was, is := strings.Split(host[name], "\n"), strings.Split(placed[name], "\n")
		if len(was) != len(is) {
			t.Fatalf("%s has %d lines on a package host and %d on an image-based one", name, len(was), len(is))
		}
		fmt.Fprintln(&differences, name)
		for i := range was {
			if was[i] != is[i] {
				fmt.Fprintf(&differences, "  - %s\n  + %s\n", was[i], is[i])
			}
		}
		// Into the place of the package host's, with programs that are there.
		root := filepath.Join(dir, "root")
		write(t, filepath.Join(dir, "units", name), strings.ReplaceAll(placed[name], imagePrefix, root), 0o644)
	}
	const golden = "testdata/image.golden"
	if *update {
		write(t, golden, differences.String(), 0o644)
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), differences.String()); diff != "" {
		t.Errorf("differences (-golden +now), -update writes it anew:\n%s", diff)
	}
	for line := range strings.Lines(string(want)) {
		if strings.HasPrefix(line, "  - ") && !strings.Contains(line, paths.DefaultRoot) {
			t.Errorf("more than the prefix differs: %s", line)
		}
	}
	for target, golden := range goldens() {
		t.Run(target, func(t *testing.T) { compare(t, dir, target, golden) })
	}
}

// imageUnits are the unit files that the document for an image-based host places.
func imageUnits(t *testing.T) map[string]string {
	t.Helper()
	in := ignition.Input{Prefix: imagePrefix, Config: ignition.Config{Credential: paths.Credential}}
	names, err := units.Programs()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(names, "unboundedctl") {
		in.Programs = append(in.Programs, ignition.Program{Name: name, Source: ignition.Source{Content: []byte(name)}})
	}
	document, report := ignition.Build(in)
	if document == nil {
		t.Fatalf("%s", report)
	}
	data, err := document.Ignition(ignition.Specs()[0], false)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Systemd struct {
			Units []struct{ Name, Contents string }
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	placed := map[string]string{}
	for _, u := range file.Systemd.Units {
		placed[u.Name] = u.Contents
	}
	return placed
}
