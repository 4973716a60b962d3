// Package release reads and writes manifest.json, which says what `make release` made: every file of a release with its
// size and SHA-256. It uses the standard library only, for generators read it too.
package release

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Schema is the version of the manifest that this release writes and reads.
const Schema = 1

// ManifestName is the manifest's name among the files of a release.
const ManifestName = "manifest.json"

// Kinds of files. A reader leaves alone what it does not know: a newer release may have more.
const (
	Program   = "program"   // one executable, as <program>-linux-<arch>.gz
	Tree      = "tree"      // what make install places, as a tar relative to /
	Extension = "extension" // a system extension image
	Script    = "script"
	SBOM      = "sbom"
	Document  = "document" // a page that the unit files refer to
)

// Gzip is the one compression that there is.
const Gzip = "gzip"

// Manifest is one release.
type Manifest struct {
	SchemaVersion int    `json:"schemaVersion"`
	Version       string `json:"version"`
	Files         []File `json:"files"` // sorted by File
}

// File is one file of a release. Size and SHA256 are those of what the reader uses in the end: of a program that is
// the executable, and FileSize and FileSHA256 are those of the compressed file. Otherwise these two are absent.
type File struct {
	Name        string `json:"name,omitempty"` // the program's
	Kind        string `json:"kind"`
	Arch        string `json:"arch,omitempty"` // as Go spells it; "" fits all
	File        string `json:"file"`           // a name without folders, to fit a release page
	Compression string `json:"compression,omitempty"`
	Size        int64  `json:"size"`
	SHA256      string `json:"sha256"`
	FileSize    int64  `json:"fileSize,omitempty"`
	FileSHA256  string `json:"fileSha256,omitempty"`
}

// Programs are the programs of the release for arch, sorted by name.
func (m Manifest) Programs(arch string) ([]File, error) {
	var programs []File
	var others []string
	for _, f := range m.Files {
		switch {
		case f.Kind != Program:
		case f.Arch == arch:
			programs = append(programs, f)
		default:
			others = append(others, f.Arch)
		}
	}
	if len(programs) == 0 {
		slices.Sort(others)
		return nil, fmt.Errorf("release %s has no programs for %s, only for %s", m.Version, arch, strings.Join(slices.Compact(others), ", "))
	}
	slices.SortFunc(programs, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return programs, nil
}

// Documents are the pages of the release, sorted by file.
func (m Manifest) Documents() []File {
	var pages []File
	for _, f := range m.Files {
		if f.Kind == Document {
			pages = append(pages, f)
		}
	}
	slices.SortFunc(pages, func(a, b File) int { return strings.Compare(a.File, b.File) })
	return pages
}

// Load reads the manifest in the file path.
func Load(path string) (Manifest, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Manifest{}, fmt.Errorf("read the release manifest: %w", err)
	}
	m, err := Parse(data)
	if err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// Parse reads a manifest. Keys that it does not know are ignored, another schema is not: what a newer release means by
// its sizes and hashes cannot be guessed. The error names everything that is wrong, on one line.
func Parse(data []byte) (Manifest, error) {
	var m Manifest
	decoder := json.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("not a release manifest: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Manifest{}, errors.New("not a release manifest: more follows after its end")
	}
	if m.SchemaVersion != Schema {
		return Manifest{}, fmt.Errorf("schemaVersion: %d, this release reads %d: use the programs of the release that the manifest is from", m.SchemaVersion, Schema)
	}
	if wrong := m.wrong(); len(wrong) > 0 {
		return Manifest{}, errors.New(strings.Join(wrong, "; "))
	}
	return m, nil
}

// JSON is the manifest as a file, sorted.
func (m Manifest) JSON() ([]byte, error) {
	m.Files = slices.SortedFunc(slices.Values(m.Files), func(a, b File) int { return strings.Compare(a.File, b.File) })
	if wrong := m.wrong(); len(wrong) > 0 {
		return nil, errors.New(strings.Join(wrong, "; "))
	}
	data, err := json.MarshalIndent(m, "", "  ")
	return append(data, '\n'), err
}

// wrong is everything that is wrong with m.
func (m Manifest) wrong() []string {
	var all []string
	if !word(m.Version) {
		all = append(all, fmt.Sprintf("version: not a word: %q", m.Version))
	}
	if len(m.Files) == 0 {
		all = append(all, "files: is empty")
	}
	seen := map[string]bool{}
	for i, f := range m.Files {
		for _, what := range f.wrong() {
			all = append(all, fmt.Sprintf("files[%d].%s", i, what))
		}
		if seen[f.File] {
			all = append(all, fmt.Sprintf("files[%d].file: %q is there twice", i, f.File))
		}
		seen[f.File] = true
		if key := f.Name + " for " + f.Arch; f.Kind == Program {
			if seen[key] {
				all = append(all, fmt.Sprintf("files[%d].name: the program %s is there twice", i, key))
			}
			seen[key] = true
		}
	}
	return all
}

func (f File) wrong() []string {
	var all []string
	add := func(bad bool, key, what string, value any) {
		if bad {
			all = append(all, fmt.Sprintf("%s: %s: %#v", key, what, value))
		}
	}
	add(f.Kind == "", "kind", "is missing", f.Kind)
	add(!word(f.File), "file", "not a name without folders", f.File)
	add((f.Kind == Program || f.Kind == Document) && !word(f.Name), "name", "not the name of a program or page", f.Name)
	add(f.Arch == "" && (f.Kind == Program || f.Kind == Tree || f.Kind == Extension), "arch", "is missing", f.Arch)
	add(f.Size <= 0, "size", "not the size of a file", f.Size)
	add(!sum(f.SHA256), "sha256", "not 64 hexadecimal digits", f.SHA256)
	switch f.Compression {
	case "":
		add(f.FileSize != 0, "fileSize", "only a compressed file has one", f.FileSize)
		add(f.FileSHA256 != "", "fileSha256", "only a compressed file has one", f.FileSHA256)
	case Gzip:
		add(f.FileSize <= 0, "fileSize", "not the size of a file", f.FileSize)
		add(!sum(f.FileSHA256), "fileSha256", "not 64 hexadecimal digits", f.FileSHA256)
	default:
		add(true, "compression", "not gzip", f.Compression)
	}
	return all
}

// word tells whether s can be a file's name, part of a URL and of a unit file, as it stands.
func word(s string) bool {
	return s != "" && s[0] != '.' && s[0] != '-' && strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-+~", r)
	}) < 0
}

// sum tells whether s is a SHA-256 as everybody writes it, in small letters.
func sum(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == 32 && s == strings.ToLower(s)
}
