package durable

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNotFile is in the chain of Read's error about a path at which no file can be.
var ErrNotFile = errors.New("not a regular file")

// Read returns the content of the regular file at path, at most limit bytes of it. A symbolic link is followed.
// Unlike os.ReadFile it does not wait for a writer of a named pipe.
func Read(path string, limit int64) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) { // links in a circle, a socket
		return nil, fmt.Errorf("%s is %w", path, ErrNotFile)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is %w", path, ErrNotFile)
	}
	return io.ReadAll(io.LimitReader(file, limit))
}
