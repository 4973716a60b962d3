// Package unpack makes a tree from the layers of an image.
//
// The entries are written by umoci's extractor, in a child process of the same program
// that has locked itself into the tree with chroot: whatever a hostile archive
// resolves to is inside, and the names that would have the extractor remove too much
// are refused before. Everything that this process does afterwards, syncs and renames
// above all, is then done from outside. The child dies with its parent.
//
// Owners, modes, extended attributes, hard links, device nodes and times come out as in
// the archive; security.selinux does not (it is the host's). The blob and the plain
// archive are verified against their digests while they are read.
package unpack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"unbounded/internal/exit"
)

// Layer is a blob to unpack.
type Layer struct {
	Path   string `json:"-"`
	SHA256 string // hex, of the blob
	Size   int64
	DiffID string // hex, of the plain archive
}

// Options are what may be left out.
type Options struct {
	Reserve int64                            // bytes that must stay free on the file system
	Warn    func(format string, args ...any) // what was left out, for the journal
	Status  func(format string, args ...any) // progress
}

// job is what the child is told.
type job struct {
	Layers  []Layer
	Reserve int64
}

// Errors that a caller acts on.
var (
	ErrCorrupt = errors.New("stored blob is corrupt") // *CorruptError says which
	ErrFull    = errors.New("no space left")
)

// CorruptError names the layer to fetch again.
type CorruptError struct {
	Layer Layer
	Err   error
}

func (e *CorruptError) Error() string { return e.Err.Error() }

// Unwrap is for errors.Is.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }

// Tree unpacks layers, lowest first, into the folder dir, which exists and is empty. It
// returns how many entries it unpacked. It syncs nothing. After an error dir holds
// a part of the tree, for the caller to remove.
func Tree(ctx context.Context, dir string, layers []Layer, opt Options) (entries int64, err error) {
	files, err := open(dir, layers)
	defer func() {
		for _, file := range files {
			_ = file.Close() // only read
		}
	}()
	if err != nil {
		return 0, err
	}
	input, err := json.Marshal(job{layers, opt.Reserve})
	if err != nil {
		return 0, err
	}
	// The child is killed when the thread that started it ends, so that a killed
	// parent leaves nobody behind who writes into a tree that the next attempt removes.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	var stderr bytes.Buffer
	command := exec.CommandContext(ctx, "/proc/self/exe")
	command.Args = []string{childName}
	command.Env = []string{"GOTRACEBACK=single"}
	command.Stdin, command.Stderr, command.ExtraFiles = bytes.NewReader(input), &stderr, files
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	output, err := command.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := command.Start(); err != nil {
		return 0, fmt.Errorf("start the unpacking child: %w", err)
	}
	last := message{}
	for lines := bufio.NewScanner(output); lines.Scan(); {
		last = message{}
		if json.Unmarshal(lines.Bytes(), &last) == nil {
			opt.relay(last, layers)
		}
	}
	_, _ = io.Copy(io.Discard, output) // a line too long ends the scan, and must not block the child
	return result(ctx, command.Wait(), last, stderr.String(), layers)
}

func open(dir string, layers []Layer) ([]*os.File, error) {
	root, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	files := []*os.File{root}
	for _, layer := range layers {
		file, err := os.OpenFile(layer.Path, unix.O_NOFOLLOW|os.O_RDONLY, 0)
		if err != nil {
			return files, err
		}
		files = append(files, file)
	}
	return files, nil
}

func (o Options) relay(m message, layers []Layer) {
	if m.Log != "" && o.Warn != nil {
		o.Warn("unpack: %s", m.Log)
	}
	if m.Layer > 0 && m.Error == "" && o.Status != nil {
		o.Status("unpack layer %d of %d", m.Layer, len(layers))
	}
}

// result is what the end of the child means.
func result(ctx context.Context, wait error, last message, stderr string, layers []Layer) (int64, error) {
	switch {
	case ctx.Err() != nil:
		return 0, fmt.Errorf("unpack: %w", context.Cause(ctx))
	case wait == nil && last.Error == "":
		return last.Entries, nil
	case last.Error == "":
		return 0, fmt.Errorf("unpack: the child ended: %w: %s", wait, strings.Join(strings.Fields(stderr), " "))
	}
	err := errors.New("unpack " + last.Error)
	switch last.Kind {
	case corrupt:
		if last.Layer > 0 && last.Layer <= len(layers) {
			return 0, &CorruptError{layers[last.Layer-1], err}
		}
	case refused:
		return 0, exit.As(exit.Refused, err)
	case full:
		return 0, fmt.Errorf("%w: %w", err, ErrFull)
	}
	return 0, err
}

// Estimate is about how many bytes the plain layers have: what a gzip member or zstd
// frame says of itself, otherwise three times the blob. It is for a first check of
// the free space; the child counts for itself.
func Estimate(layers []Layer) (int64, error) {
	var total int64
	for _, layer := range layers {
		n, err := estimate(layer)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

func estimate(layer Layer) (int64, error) {
	file, err := os.Open(layer.Path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	var head [4]byte
	if _, err := io.ReadFull(file, head[:]); err != nil {
		return layer.Size, nil // too short to be compressed; unpacking will say what it is
	}
	switch {
	case head[0] == 0x1f && head[1] == 0x8b && layer.Size < 1<<30:
		var tail [4]byte // the size modulo 2^32; of the last member only
		if _, err := file.ReadAt(tail[:], layer.Size-4); err != nil {
			return 0, err
		}
		return max(int64(binary.LittleEndian.Uint32(tail[:])), layer.Size), nil
	case head[0] == 0x1f && head[1] == 0x8b, bytes.Equal(head[:], []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return 3 * layer.Size, nil
	}
	return layer.Size, nil
}
