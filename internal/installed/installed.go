// Package installed tells whether the programs and unit files of the product are on the host as they were installed.
package installed

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
	"unbounded/units"
)

// File says what is wrong with path below root, which is to be a regular file of root with exactly
// mode, with something in it unless it may be empty. "" is nothing.
func File(root, path string, mode fs.FileMode, empty bool) string {
	info, err := os.Lstat(paths.At(root, path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return path + " is missing"
	case err != nil:
		return err.Error()
	case !info.Mode().IsRegular():
		return path + " is not a regular file"
	case info.Mode().Perm() != mode:
		return fmt.Sprintf("%s has mode %04o, want %04o", path, info.Mode().Perm(), mode)
	case !durable.Owned(info):
		return path + " is not owned by root"
	case info.Size() == 0 && !empty:
		return path + " is empty"
	}
	return ""
}

// unitDirs are where unit files are installed, in the order in which systemd looks.
var unitDirs = [...]string{paths.SystemdDir, "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// Findings are everything that is wrong with our unit files below root, and with the programs that they
// start. Prefix is where programs are, for units that start none.
func Findings(root, prefix string) []string {
	files, err := units.Rendered(units.RootToken)
	if err != nil {
		return []string{err.Error()}
	}
	var findings []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, finding := range unit(root, prefix, name, files[name]) {
			if !slices.Contains(findings, finding) { // one program is started by several units
				findings = append(findings, finding)
			}
		}
	}
	return findings
}

// unit compares a unit file with ours. Its folder of programs is read from the file itself: the record's
// prefix has its links resolved, the file's need not.
func unit(root, prefix, name, source string) []string {
	for _, dir := range unitDirs {
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(paths.At(root, path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return []string{err.Error()}
		}
		var findings []string
		if wrong := File(root, path, 0o644, false); wrong != "" {
			findings = append(findings, wrong)
		}
		folder, programs := Starts(string(data))
		for _, program := range programs {
			prefix = folder
			if wrong := executable(root, filepath.Join(folder, program)); wrong != "" {
				findings = append(findings, wrong)
			}
		}
		if strings.ReplaceAll(string(data), prefix, units.RootToken) != source {
			findings = append(findings, path+" differs from this release's")
		}
		return findings
	}
	return []string{"unit " + name + " is missing"}
}

// Starts is the folder and the programs (current/NAME) of ours that the ExecStart= lines of unit start.
func Starts(unit string) (folder string, programs []string) {
	for line := range strings.Lines(unit) {
		command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart=")
		path, _, _ := strings.Cut(command, " ")
		if root, name, found := strings.Cut(path, "/current/"); ok && found {
			folder = root
			programs = append(programs, "current/"+name)
		}
	}
	return folder, programs
}

func executable(root, path string) string {
	info, err := os.Stat(paths.At(root, path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return path + " is missing"
	case err != nil:
		return err.Error()
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return path + " is not executable"
	}
	return ""
}
