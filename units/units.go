// Package units holds the unit files. They are static but for the one token RootToken, which make install replaces
// too, in the message catalog as well.
package units

import (
	"embed"
	"maps"
	"slices"
	"strings"
)

// RootToken stands for the folder that the programs are installed in.
const RootToken = "@root@"

// Files are the unit files as they are in the source, with RootToken.
//
//go:embed *.service *.target
var Files embed.FS

// Rendered returns every unit file by name, for programs below root.
func Rendered(root string) (map[string]string, error) {
	entries, err := Files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	rendered := make(map[string]string, len(entries))
	for _, entry := range entries {
		data, err := Files.ReadFile(entry.Name())
		if err != nil {
			return nil, err
		}
		rendered[entry.Name()] = strings.ReplaceAll(string(data), RootToken, root)
	}
	return rendered, nil
}

// Programs are the programs that the unit files start, sorted by name.
func Programs() ([]string, error) {
	rendered, err := Rendered("")
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, unit := range rendered {
		for line := range strings.Lines(unit) {
			if command, ok := strings.CutPrefix(line, "ExecStart=/current/"); ok {
				found[strings.Fields(command)[0]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}
