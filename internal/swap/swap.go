// Package swap lists the active swap areas of the host and turns them off.
package swap

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"unbounded/internal/before"
	"unbounded/internal/paths"
	"unbounded/internal/proc"
)

// Area is an active swap area.
type Area struct {
	Path     string
	Priority string // below 0: given by the kernel
}

// List reads the active areas of the host below root. A kernel without swap has none.
func List(root string) ([]Area, error) {
	data, err := os.ReadFile(paths.At(root, "/proc/swaps"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parse(string(data))
}

func parse(text string) ([]Area, error) {
	var areas []Area
	first := true
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if first || len(fields) == 0 {
			first = false // the heading
			continue
		}
		if len(fields) != 5 {
			return nil, fmt.Errorf("read swap areas: unknown line %q", strings.TrimSpace(line))
		}
		areas = append(areas, Area{Path: proc.Unescape(fields[0]), Priority: fields[4]})
	}
	return areas, nil
}

// Find returns the changes that turn every active area off.
func Find(root string) ([]before.Change, error) {
	areas, err := List(root)
	var changes []before.Change
	for _, area := range areas {
		changes = append(changes, before.Change{
			Kind: before.Swap, Object: area.Path, Now: before.Text(prefix + area.Priority), Want: before.Gone(),
		})
	}
	return changes, err
}

// Off turns an area off; what is in it goes to memory first. One that is off already is done.
func Off(root, path string) error {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(name)), 0, 0)
	if errno == 0 {
		return nil
	}
	area, on, err := find(root, path)
	if err != nil {
		return errors.Join(errno, err)
	}
	if on {
		if errno == unix.ENOMEM {
			return fmt.Errorf("swapoff %s: %w: what is in it does not fit into memory; stop programs or add memory", path, errno)
		}
		return fmt.Errorf("swapoff %s: %w", area.Path, errno)
	}
	return nil // somebody else was faster
}

// The flags of swapon(2).
const (
	prefer       = 0x8000
	priorityMask = 0x7fff
)

// hostRoot is the host's root as PID 1 sees it. The kernel remembers by which mount an area was opened: with one of
// this program's sandbox /proc/swaps would show a path that does not exist once that is gone.
const hostRoot = "/proc/1/root"

// On turns an area on with a priority as List told it. One that is on already is done.
func On(root, path, priority string) error {
	name, err := unix.BytePtrFromString(hostRoot + path)
	if err != nil {
		return err
	}
	flags := uintptr(0)
	if number, err := strconv.Atoi(priority); err == nil && number >= 0 {
		flags = prefer | uintptr(number)&priorityMask
	}
	_, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(name)), flags, 0)
	if errno == 0 {
		return nil
	}
	if _, on, err := find(root, path); err != nil || on {
		return err
	}
	return fmt.Errorf("swapon %s: %w", path, errno)
}

func find(root, path string) (Area, bool, error) {
	areas, err := List(root)
	for _, area := range areas {
		if area.Path == path {
			return area, true, err
		}
	}
	return Area{}, false, err
}

// prefix is before the priority in a before-image.
const prefix = "priority "

// Now is how the area of e, an entry that Find's changes made, is at present. One that is on is as it was: priorities that
// the kernel gave depend on the order of others.
func Now(root string, e before.Entry) (before.State, error) {
	_, on, err := find(root, e.Object)
	if on {
		return e.Before, err
	}
	return before.Gone(), err
}

// Priority is what the area of e had.
func Priority(e before.Entry) string { return strings.TrimPrefix(e.Before.Value, prefix) }
