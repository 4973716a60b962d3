package installed

import (
	"fmt"
	"os"
	"path/filepath"
)

// Program is the file of the running program, without links.
func Program() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(self)
}

// Prefix is the folder that the running program is installed below.
func Prefix() (string, error) {
	self, err := Program()
	if err != nil {
		return "", err
	}
	return PrefixOf(self)
}

// PrefixOf is the folder that program is installed below: <prefix>/slots/<colour>/<program>. A program that is
// elsewhere is an error.
func PrefixOf(program string) (string, error) {
	slots := filepath.Dir(filepath.Dir(program))
	if filepath.Base(slots) != "slots" {
		return "", fmt.Errorf("%s is not where make install puts it, below a folder slots: install it", program)
	}
	return filepath.Dir(slots), nil
}
