package installed

import (
	"fmt"
	"os"
	"path/filepath"
)

// Prefix is the folder that the running program is installed below: <prefix>/slots/<colour>/<program>. A program
// that is elsewhere is an error.
func Prefix() (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", err
	}
	return prefix(self)
}

func prefix(program string) (string, error) {
	slots := filepath.Dir(filepath.Dir(program))
	if filepath.Base(slots) != "slots" {
		return "", fmt.Errorf("%s is not where make install puts it, below a folder slots: install it", program)
	}
	return filepath.Dir(slots), nil
}
