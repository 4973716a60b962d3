// Package inventory is the record inside a tree of what it was built from: the image and the node's binaries.
//
// It is written before the tree gets its name, so a tree that has one is complete. An
// image cannot bring one along: the folder is removed from every image first. Against
// it a file of a tree is checked quickly, without network, and repaired.
package inventory

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"unbounded/internal/tree"
)

// Path is where the inventory is in a tree. Its folder is ours alone.
const Path = "/etc/unbounded/image.json"

const (
	version    = 1
	maxBytes   = 1 << 20
	maxProgram = 1 << 30
)

// ErrNone is in the chain when a tree has no inventory: it was not built by us.
var ErrNone = errors.New("tree has no inventory")

// Inventory is what a tree was built from.
type Inventory struct {
	Version  int      `json:"schemaVersion"`
	Image    Image    `json:"image"`
	Binaries []Binary `json:"binaries"`
}

// Image is the image that was unpacked.
type Image struct {
	Reference string `json:"reference"` // without a query
	Digest    string `json:"digest"`    // of the manifest, sha256:…
	Platform  string `json:"platform"`
}

// Binary is one download: a program, or an archive of some.
type Binary struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256,omitempty"` // of the download; empty when the image brought it along
	Files   []File `json:"files"`
}

// File is one program in the tree.
type File struct {
	Path   string      `json:"path"`
	Size   int64       `json:"size"`
	Mode   fs.FileMode `json:"mode"`
	MTime  int64       `json:"mtime"` // ns
	SHA256 string      `json:"sha256"`
}

// Load reads the inventory of a tree. Every error but ErrNone is of a tree that cannot be judged.
func Load(root *tree.Root) (Inventory, error) {
	var i Inventory
	data, err := root.ReadFile(Path, maxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return i, fmt.Errorf("%s: %w", root.Name(), ErrNone)
	}
	if err != nil {
		return i, fmt.Errorf("read inventory: %w", err)
	}
	if err := json.Unmarshal(data, &i); err != nil {
		return i, fmt.Errorf("read inventory %s: %w", path.Join(root.Name(), Path), err)
	}
	if i.Version != version {
		return i, fmt.Errorf("inventory %s has schemaVersion %d, this release reads %d", path.Join(root.Name(), Path), i.Version, version)
	}
	return i, i.check(root)
}

// check lets nothing through that could lead out of the tree or the content store: a
// machine is root in its tree and can write there what it likes.
func (i Inventory) check(root *tree.Root) error {
	bad := func(what string) error {
		return fmt.Errorf("inventory %s: %q is not valid: remove the file while the machine is stopped, and the tree with it", path.Join(root.Name(), Path), what)
	}
	for _, b := range i.Binaries {
		if b.SHA256 != "" && !isSHA256(b.SHA256) {
			return bad(b.SHA256)
		}
		for _, f := range b.Files {
			if !isSHA256(f.SHA256) {
				return bad(f.SHA256)
			}
		}
	}
	return nil
}

func isSHA256(text string) bool {
	raw, err := hex.DecodeString(text)
	return err == nil && len(raw) == sha256.Size
}

// Save writes the inventory into a tree, if it differs.
func (i Inventory) Save(root *tree.Root) error {
	i.Version = version
	data, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	_, err = root.Write(Path, append(data, '\n'), 0o600)
	return err
}

// Binary is the one called name.
func (i Inventory) Binary(name string) (Binary, bool) {
	for _, b := range i.Binaries {
		if b.Name == name {
			return b, true
		}
	}
	return Binary{}, false
}

// Set puts b in the place of the one of its name.
func (i *Inventory) Set(b Binary) {
	for n := range i.Binaries {
		if i.Binaries[n].Name == b.Name {
			i.Binaries[n] = b
			return
		}
	}
	i.Binaries = append(i.Binaries, b)
}

// Measure is what the file at name in the tree is.
func Measure(root *tree.Root, name string) (File, error) {
	file, err := root.Open(name)
	if err != nil {
		return File{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return File{}, err
	}
	if info.Size() > maxProgram {
		return File{}, fmt.Errorf("%s has %d bytes, more than %d", file.Name(), info.Size(), maxProgram)
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return File{}, err
	}
	return File{name, info.Size(), info.Mode(), info.ModTime().UnixNano(), hex.EncodeToString(hash.Sum(nil))}, nil
}

// Wrong is why a file is not as recorded, "" when it is. It reads the file only when
// size and mode are right and the time is not.
func (f File) Wrong(root *tree.Root) (string, error) {
	info, err := root.Lstat(f.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "missing", nil
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "not a file", nil
	case info.Mode() != f.Mode:
		return fmt.Sprintf("mode is %#o, want %#o", info.Mode().Perm(), f.Mode.Perm()), nil
	case info.Size() != f.Size:
		return "changed", nil
	case info.ModTime().UnixNano() == f.MTime:
		return "", nil
	}
	have, err := Measure(root, f.Path)
	if err != nil {
		return "", err
	}
	if have.SHA256 != f.SHA256 {
		return "changed", nil
	}
	return "", nil
}
