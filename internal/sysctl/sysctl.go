// Package sysctl reads and writes live kernel parameters, and knows what the files of sysctl.d say about them.
//
// A key is written as in those files, "net.ipv4.ip_forward". Root is "/" on a host.
package sysctl

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"unbounded/internal/paths"
)

// Setting is one line of a file in sysctl.d.
type Setting struct {
	Key   string
	Value string
}

// Parse reads the settings of a file in sysctl.d. Patterns and exclusions ("-key") are left out:
// a setting by name wins over both, wherever it stands.
func Parse(data []byte) []Setting {
	var settings []Setting
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(key), "-"))
		if !ok || strings.ContainsAny(key, "*?[") {
			continue
		}
		settings = append(settings, Setting{normal(key), strings.TrimSpace(value)})
	}
	return settings
}

// normal is key with dots between its parts. Whichever of dot and slash comes first is the
// separator: the other is a dot or slash in a part, which Path turns back.
func normal(key string) string {
	if at := strings.IndexAny(key, "./"); at < 0 || key[at] == '.' {
		return key
	}
	return swap(key)
}

func swap(s string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, s)
}

// Path is where key is below root.
func Path(root, key string) string { return paths.At(root, "/proc/sys/"+swap(key)) }

// Read is the value of key without the newline. A key that does not exist is fs.ErrNotExist.
func Read(root, key string) (string, error) {
	data, err := os.ReadFile(Path(root, key))
	return string(bytes.TrimSpace(data)), err
}

// Write sets key and reads it back: a namespace may take a value and keep another. It makes no file: a key
// that does not exist is fs.ErrNotExist.
func Write(root, key, value string) error {
	if err := write(Path(root, key), value); err != nil {
		return fmt.Errorf("set %s = %s: %w", key, value, err)
	}
	now, err := Read(root, key)
	if err == nil && now != value {
		err = fmt.Errorf("set %s = %s: it still reads %s", key, value, now)
	}
	return err
}

func write(path, value string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value + "\n")
	return errors.Join(err, file.Close())
}

// Override is a setting of a file that is applied after ours and disagrees.
type Override struct {
	File string
	Setting
}

// dirs are searched for *.conf; a file hides those of its name in later folders.
var dirs = [...]string{"/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d"}

// Overrides are the settings that disagree with ours and are applied after file, which lies in /etc/sysctl.d: at
// the next boot they win. Of several for one key it is the last that counts.
func Overrides(root, file string, ours []Setting) ([]Override, error) {
	files, err := after(root, filepath.Base(file))
	if err != nil {
		return nil, err
	}
	last := map[string]Override{}
	for _, file := range files {
		data, err := os.ReadFile(paths.At(root, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a dangling link
		}
		if err != nil {
			return nil, err
		}
		for _, setting := range Parse(data) {
			last[setting.Key] = Override{file, setting}
		}
	}
	var overrides []Override
	for _, want := range ours {
		if have, ok := last[want.Key]; ok && have.Value != want.Value {
			overrides = append(overrides, have)
		}
	}
	return overrides, nil
}

// after are the files of sysctl.d that come after name, in order.
func after(root, name string) ([]string, error) {
	found := map[string]string{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(paths.At(root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, entry := range entries {
			base := entry.Name()
			if strings.HasSuffix(base, ".conf") && base > name && found[base] == "" {
				found[base] = filepath.Join(dir, base)
			}
		}
	}
	files := make([]string, 0, len(found))
	for _, file := range found {
		files = append(files, file)
	}
	slices.SortFunc(files, func(a, b string) int { return cmp.Compare(filepath.Base(a), filepath.Base(b)) })
	return files, nil
}
