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
	"path"
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
	for _, l := range lines(data) {
		if l.set && !l.pattern() {
			settings = append(settings, l.Setting)
		}
	}
	return settings
}

// line is a line of a file in sysctl.d; one that sets nothing excludes its key from patterns.
type line struct {
	Setting
	set bool
}

func (l line) pattern() bool { return strings.ContainsAny(l.Key, "*?[") }

func lines(data []byte) []line {
	var all []line
	for text := range strings.Lines(string(data)) {
		text = strings.TrimSpace(text)
		if text == "" || text[0] == '#' || text[0] == ';' {
			continue
		}
		key, value, set := strings.Cut(text, "=")
		key, minus := strings.CutPrefix(strings.TrimSpace(key), "-") // with a value: failing to set it is no failure
		if set || minus {
			all = append(all, line{Setting{normal(strings.TrimSpace(key)), strings.TrimSpace(value)}, set})
		}
	}
	return all
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
	last := map[string]Override{}
	err := read(root, filepath.Base(file), func(file string, data []byte) {
		for _, setting := range Parse(data) {
			last[setting.Key] = Override{file, setting}
		}
	})
	if err != nil {
		return nil, err
	}
	var overrides []Override
	for _, want := range ours {
		if have, ok := last[want.Key]; ok && have.Value != want.Value {
			overrides = append(overrides, have)
		}
	}
	return overrides, nil
}

// Configured is what the files of sysctl.d say about keys, as the next boot would set it. Keys that they do not
// set are not in it.
func Configured(root string, keys []string) (map[string]string, error) {
	named, matched, excluded := map[string]string{}, map[string]string{}, map[string]bool{}
	err := read(root, "", func(_ string, data []byte) {
		for _, l := range lines(data) {
			for _, key := range keys {
				switch ok, err := path.Match(swap(l.Key), swap(key)); {
				case err != nil || !ok:
				case !l.set:
					excluded[key] = true
				case l.pattern():
					matched[key] = l.Value
				default:
					named[key] = l.Value
				}
			}
		}
	})
	for key, value := range matched {
		if _, ok := named[key]; !ok && !excluded[key] {
			named[key] = value
		}
	}
	return named, err
}

// read gives to each the files of sysctl.d whose names come after name, in the order in which they are applied.
func read(root, name string, each func(file string, data []byte)) error {
	files, err := after(root, name)
	if err != nil {
		return err
	}
	for _, file := range files {
		data, err := os.ReadFile(paths.At(root, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a dangling link
		}
		if err != nil {
			return err
		}
		each(file, data)
	}
	return nil
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
