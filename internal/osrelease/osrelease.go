// Package osrelease reads what a distribution says of itself (os-release(5)).
package osrelease

import (
	"os"
	"strings"

	"unbounded/internal/paths"
)

// Read gives the fields of the host below root, values without quotes: of /etc/os-release, or of the one in /usr where that
// cannot be read or is empty. Without either there are none.
func Read(root string) map[string]string {
	fields := map[string]string{}
	for _, path := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		data, err := os.ReadFile(paths.At(root, path))
		if err != nil || len(data) == 0 {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if key, value, found := strings.Cut(line, "="); found {
				fields[strings.TrimSpace(key)] = strings.Trim(strings.TrimSpace(value), `"'`)
			}
		}
		break
	}
	return fields
}
