package host

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// File is a file that a test puts on a host. Folders are made as needed.
type File struct {
	Content string
	Mode    fs.FileMode // default 0644, or 0755 of a folder
	Link    string      // a symbolic link to this instead
	Folder  bool        // a folder instead
	Absent  bool        // removed instead, with all below it
}

// identity is what distinguishes a host from the tree that it comes from.
func identity(options Options) map[string]File {
	name := cmp.Or(options.Hostname, "node-1")
	return map[string]File{
		"/etc/hostname":   {Content: name + "\n"},
		"/etc/hosts":      {Content: "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 " + name + "\n"},
		"/etc/machine-id": {Content: randomHex(16) + "\n", Mode: 0o444},
		// Nobody answers there: a name that needs DNS is refused at once.
		"/etc/resolv.conf":                        {Content: "nameserver " + OutsideIP + "\n"},
		"/etc/systemd/system/ground-link.service": {Content: linkUnit},
		"/etc/systemd/system/sysinit.target.wants/ground-link.service": {
			Link: "/etc/systemd/system/ground-link.service",
		},
	}
}

// linkUnit is the network of a host without DHCP.
const linkUnit = `[Unit]
Description=Test ground: configure the link host0
DefaultDependencies=no
Before=sysinit.target network.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/sbin/ip addr replace ` + InsideIP + `/24 dev host0
ExecStart=/sbin/ip link set host0 up
ExecStart=/sbin/ip route replace default via ` + OutsideIP + `
`

// ReadFile reads a file of the host.
func (h *Host) ReadFile(t T, name string) string {
	t.Helper()
	content, err := h.readFile(name)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return content
}

// Exists tells whether the host has a file, a dangling link included.
func (h *Host) Exists(t T, name string) bool {
	t.Helper()
	file, err := h.open(name, unix.O_PATH|unix.O_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	_ = file.Close()
	return true
}

// WriteFile puts a file on the host, which may run.
func (h *Host) WriteFile(t T, name string, file File) {
	t.Helper()
	h.place(t, name, file)
}

func (h *Host) readFile(name string) (string, error) {
	file, err := h.open(name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer file.Close()
	content, err := io.ReadAll(file)
	return string(content), err
}

// view is the root folder through which files are reached: that of the running
// host, with its /run and other mounts, or else the bare tree.
func (h *Host) view() string {
	if leader := h.Leader(); leader != 0 {
		return fmt.Sprintf("/proc/%d/root", leader)
	}
	return h.Root
}

// open opens a path as the host would, so that its absolute links stay in it.
func (h *Host) open(name string, flags uint64) (*os.File, error) {
	root, err := unix.Open(h.view(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: h.view(), Err: err}
	}
	defer unix.Close(root)
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(root, name, &how)
	if err != nil {
		return nil, &fs.PathError{Op: "open on the host", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (h *Host) place(t T, name string, file File) {
	t.Helper()
	if err := h.put(name, file); err != nil {
		t.Fatalf("write %s: %v", name, err)
	}
}

func (h *Host) put(name string, file File) error {
	name = path.Clean("/" + name)
	folder, err := h.makeFolder(path.Dir(name))
	if err != nil {
		return err
	}
	defer folder.Close()
	// Through the descriptor the path has no link left but the last name.
	target := filepath.Join("/proc/self/fd", fmt.Sprint(folder.Fd()), path.Base(name))
	switch {
	case file.Absent:
		return os.RemoveAll(target)
	case file.Folder:
		err := os.Mkdir(target, 0o755)
		if errors.Is(err, fs.ErrExist) {
			err = nil
		}
		return errors.Join(err, os.Chmod(target, file.mode(0o755)))
	}
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	if file.Link != "" {
		return os.Symlink(file.Link, target)
	}
	err = os.WriteFile(target, []byte(file.Content), 0o600)
	return errors.Join(err, os.Chmod(target, file.mode(0o644)))
}

func (f File) mode(otherwise fs.FileMode) fs.FileMode {
	if f.Mode != 0 {
		return f.Mode
	}
	return otherwise
}

// makeFolder opens a folder of the host and makes what is missing on the way.
func (h *Host) makeFolder(name string) (*os.File, error) {
	folder, err := h.open(name, unix.O_PATH|unix.O_DIRECTORY)
	if !errors.Is(err, fs.ErrNotExist) {
		return folder, err
	}
	parent, err := h.makeFolder(path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if err := unix.Mkdirat(int(parent.Fd()), path.Base(name), 0o755); err != nil {
		return nil, err
	}
	return h.open(name, unix.O_PATH|unix.O_DIRECTORY)
}
