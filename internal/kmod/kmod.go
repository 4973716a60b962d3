// Package kmod makes functions of the kernel available that may be in a module.
//
// Whether the function is there is asked of the kernel, never whether a module is
// loaded: it may be built in, and a kernel may have no modules at all.
package kmod

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"unbounded/internal/exit"
	"unbounded/internal/paths"
)

// Module is a module, and the proof that the kernel can do what it is for.
type Module struct {
	Name       string
	FileSystem string // listed in /proc/filesystems, or
	Path       string // a path that exists
}

// Present tells whether the kernel below root has what m is for.
func (m Module) Present(root string) (bool, error) {
	if m.Path != "" {
		_, err := os.Stat(paths.At(root, m.Path))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
	data, err := os.ReadFile(paths.At(root, "/proc/filesystems"))
	if err != nil {
		return false, err
	}
	for line := range bytes.Lines(data) {
		fields := bytes.Fields(line)
		if len(fields) > 0 && string(fields[len(fields)-1]) == m.FileSystem {
			return true, nil
		}
	}
	return false, nil
}

// Loader loads a module with what it depends on.
type Loader func(ctx context.Context, name string) error

// Ensure makes what m is for available and says whether it had to load m.
// A kernel that has no such module is refused: no retry brings one.
func (m Module) Ensure(ctx context.Context, root string, load Loader) (loaded bool, err error) {
	present, err := m.Present(root)
	if present || err != nil {
		return false, err
	}
	release, exists, err := m.find(root)
	if err != nil {
		return false, err
	}
	if !exists {
		return false, exit.As(exit.Refused, fmt.Errorf(
			"kernel %s has no module %s: install the modules of this kernel (packages linux-modules-extra or kernel-modules-extra), "+
				"or reboot if the kernel was updated since boot", release, m.Name))
	}
	if err := load(ctx, m.Name); err != nil {
		return false, fmt.Errorf("load module %s: %w", m.Name, err)
	}
	present, err = m.Present(root)
	if err == nil && !present {
		err = fmt.Errorf("module %s was loaded, but %s is still missing", m.Name, m.proof())
	}
	return true, err
}

func (m Module) proof() string {
	if m.Path != "" {
		return m.Path
	}
	return "file system " + m.FileSystem
}

// find looks for m among the modules of the running kernel.
func (m Module) find(root string) (release string, exists bool, err error) {
	data, err := os.ReadFile(paths.At(root, "/proc/sys/kernel/osrelease"))
	if err != nil {
		return "", false, err
	}
	release = strings.TrimSpace(string(data))
	index, err := os.ReadFile(paths.At(root, "/lib/modules/"+release+"/modules.dep"))
	if errors.Is(err, fs.ErrNotExist) {
		return release, false, nil
	}
	for line := range strings.Lines(string(index)) {
		file, _, _ := strings.Cut(line, ":")
		name, _, _ := strings.Cut(path.Base(file), ".ko")
		if strings.ReplaceAll(name, "-", "_") == m.Name {
			return release, true, nil
		}
	}
	return release, false, err
}
