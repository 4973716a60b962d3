package installed

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

// maxManifest is far more than any manifest has.
const maxManifest = 1 << 20

// Manifest is what an installer placed on the host below root, without the manifest itself. fs.ErrNotExist is in the
// chain when it did not say.
func Manifest(root, prefix string) ([]string, error) {
	name := filepath.Join(prefix, paths.Manifest)
	data, err := durable.Read(paths.At(root, name), maxManifest)
	if err != nil {
		return nil, fmt.Errorf("read what was installed: %w", err)
	}
	var all []string
	for line := range strings.Lines(string(data)) {
		path := strings.TrimSuffix(line, "\n")
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
			return nil, fmt.Errorf("%s: not an absolute path: %q", name, path)
		}
		all = append(all, path)
	}
	if len(all) == 0 {
		return nil, errors.Join(fmt.Errorf("%s is empty", name), fs.ErrNotExist)
	}
	return all, nil
}
