// Package guest says which files are to be in the tree of a machine, and compares them with those that are.
//
// A file is data: path, kind, mode, content, and the service in the machine that reads
// it. Files are made from a configuration by pure functions (packages system, kubelet
// and containerd), compared by Plan, and written one by one by whoever decides on the order.
package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"unbounded/internal/durable"
	"unbounded/internal/tree"
)

// Mark is the first line of the files that are made from the configuration, in the tree and beside it.
const Mark = "# Written by unbounded-node from the host's configuration: changes here are undone.\n"

// Kind says what is to be at a path.
type Kind int

// The kinds of File.
const (
	Regular Kind = iota
	Link         // Data is the target
	Folder       // with Mode; its content does not matter
	Absent       // nothing is to be there
)

// File is what is to be at Path, which begins with / at the root of the tree.
// Regular files and folders are owned by root.
type File struct {
	Path    string
	Kind    Kind
	Mode    fs.FileMode // of Regular and Folder
	Data    []byte
	Service string // "containerd" or "kubelet", when it has to be restarted for a new content
}

// Text is a regular file that everybody may read.
func Text(path, content string) File {
	return File{Path: path, Mode: 0o644, Data: []byte(content)}
}

// Private is a regular file that only root may read.
func Private(path string, content []byte) File {
	return File{Path: path, Mode: 0o600, Data: content}
}

// Symlink is a link at path to target.
func Symlink(target, path string) File {
	return File{Path: path, Kind: Link, Data: []byte(target)}
}

// Gone says that nothing is to be at path.
func Gone(path string) File { return File{Path: path, Kind: Absent} }

// ReadBy returns the files as ones that service reads when it starts.
func ReadBy(service string, files ...File) []File {
	for i := range files {
		files[i].Service = service
	}
	return files
}

// Difference is how a file is not what it should be.
type Difference int

// The differences.
const (
	None       Difference = iota
	Attributes            // mode or owner
	Content               // or kind, or existence
)

// Change is a file that is not what it should be.
type Change struct {
	File       File
	Difference Difference
}

// How says what is done about it.
func (c Change) How() string {
	switch {
	case c.File.Kind == Absent:
		return "removed"
	case c.Difference == Attributes:
		return "mode and owner corrected"
	}
	return "written"
}

// Plan returns what differs in the tree, in the order of files.
func Plan(root *tree.Root, files []File) ([]Change, error) {
	var changes []Change
	for _, f := range files {
		difference, err := compare(root, f)
		if err != nil {
			return nil, err
		}
		if difference != None {
			changes = append(changes, Change{f, difference})
		}
	}
	return changes, nil
}

func compare(root *tree.Root, f File) (Difference, error) {
	info, err := root.Lstat(f.Path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		if f.Kind == Absent {
			return None, nil
		}
		return Content, nil
	}
	if err != nil {
		return None, err
	}
	switch f.Kind {
	case Link:
		have, err := root.Readlink(f.Path)
		if err == nil && have == string(f.Data) {
			return None, nil
		}
		return Content, notLink(err)
	case Folder:
		if !info.IsDir() {
			return Content, nil
		}
	case Regular:
		if !info.Mode().IsRegular() || info.Size() != int64(len(f.Data)) {
			return Content, nil
		}
		if have, err := root.ReadFile(f.Path, info.Size()); err != nil || !bytes.Equal(have, f.Data) {
			return Content, err
		}
	default:
		return Content, nil
	}
	if !durable.Owned(info) || info.Mode()&^fs.ModeDir != f.Mode {
		return Attributes, nil
	}
	return None, nil
}

// notLink keeps an error that means more than that the file is no link.
func notLink(err error) error {
	if errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}

// Apply makes one file what it should be, durably.
func Apply(root *tree.Root, f File) error {
	switch f.Kind {
	case Regular:
		_, err := root.Write(f.Path, f.Data, f.Mode)
		return err
	case Link:
		return root.Symlink(string(f.Data), f.Path)
	case Folder:
		return root.Folder(f.Path, f.Mode)
	case Absent:
		return root.Unlink(f.Path)
	}
	return fmt.Errorf("%s: kind %d is not known", f.Path, f.Kind)
}
