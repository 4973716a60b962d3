package installed

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"unbounded/internal/paths"
)

// release is there while the system extension is merged.
const release = "/usr/lib/extension-release.d/extension-release.unbounded"

// Extension tells whether the programs below prefix come from the system extension, which is not taken off file by file
// but as a whole: its images are what systemd-sysext merges, in the order in which it looks.
func Extension(root, prefix string) (images []string, merged bool, err error) {
	if !strings.HasPrefix(prefix, "/usr/") {
		return nil, false, nil
	}
	if _, err := os.Lstat(paths.At(root, release)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, false, err
	}
	for _, image := range []string{"/etc/extensions/unbounded", "/run/extensions/unbounded", "/var/lib/extensions/unbounded"} {
		for _, name := range []string{image + ".raw", image} {
			if _, err := os.Lstat(paths.At(root, name)); err == nil {
				images = append(images, name)
			}
		}
	}
	return images, true, nil
}
