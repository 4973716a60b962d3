// Package units holds the unit files. They are static but for the one token RootToken, which make install replaces
// too, in the message catalog as well.
package units

import (
	"embed"
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
