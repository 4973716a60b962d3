// Package listener finds out who listens on a TCP port of this host: the process, its executable and its unit.
//
// It reads /proc alone, so it needs neither netlink nor D-Bus, and a test gives it a
// made-up one. To see the processes of others it needs CAP_SYS_PTRACE.
package listener

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Socket is a TCP socket that listens.
type Socket struct {
	Address netip.AddrPort
	Owners  []Owner // every process that has it open; empty when none could be found
}

// Owner is a process that has a listening socket open.
type Owner struct {
	PID int
	// Executable is the path that the process itself sees, without the mark of a
	// file that was replaced meanwhile. Empty: it cannot be read.
	Executable string
	// Unit is the unit of the host, with the one inside a machine behind a slash:
	// "systemd-nspawn@kube1.service/kubelet.service". Empty: it has none.
	Unit string
}

// String is the owner as operators look for it: "pid 812 (/usr/bin/nginx, nginx.service)".
func (o Owner) String() string {
	executable := o.Executable
	if executable == "" {
		executable = "executable unreadable"
	}
	unit := o.Unit
	if unit == "" {
		unit = "no unit"
	}
	return fmt.Sprintf("pid %d (%s, %s)", o.PID, executable, unit)
}

// deleted is what the kernel puts behind the path of an executable that is no longer there.
const deleted = " (deleted)"

// On returns the sockets that listen on port, of either IP family, on whatever
// address, with their owners. Proc is /proc.
func On(proc string, port uint16) ([]Socket, error) {
	listening := map[string]netip.AddrPort{}
	for _, table := range []string{"net/tcp", "net/tcp6"} {
		if err := read(filepath.Join(proc, table), port, listening); err != nil {
			return nil, err
		}
	}
	if len(listening) == 0 {
		return nil, nil
	}
	owners, err := holders(proc, listening)
	if err != nil {
		return nil, err
	}
	var sockets []Socket
	for inode, address := range listening {
		sockets = append(sockets, Socket{Address: address, Owners: owners[inode]})
	}
	slices.SortFunc(sockets, func(a, b Socket) int { return a.Address.Compare(b.Address) })
	return sockets, nil
}

// stateListen is TCP_LISTEN as /proc/net/tcp prints it.
const stateListen = "0A"

// read adds the listening sockets of one table to found, by inode. A kernel without
// IPv6 has no table for it.
func read(path string, port uint16, found map[string]netip.AddrPort) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(path, "6") {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Scan() // the heading
	for lines.Scan() {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != stateListen {
			continue
		}
		address, err := parseAddress(fields[1])
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if address.Port() == port {
			found[fields[9]] = address
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// parseAddress reads "0100007F:280A": words of the address in the byte order of this host, then the port.
func parseAddress(text string) (netip.AddrPort, error) {
	address, port, found := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	raw, hexErr := hex.DecodeString(address)
	if !found || err != nil || hexErr != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("address %q is not one", text)
	}
	if littleEndian() {
		for word := range slices.Chunk(raw, 4) {
			slices.Reverse(word)
		}
	}
	ip, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("address %q is not one", text)
	}
	return netip.AddrPortFrom(ip, uint16(number)), nil
}

// littleEndian tells the byte order of this host.
func littleEndian() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }

// holders returns the processes that have one of the sockets open, by inode. A
// process that ends meanwhile is none, one that may not be looked into is skipped:
// a socket without an owner is the caller's to judge.
func holders(proc string, sockets map[string]netip.AddrPort) (map[string][]Owner, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	owners := map[string][]Owner{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, entry.Name())
		for _, inode := range socketsOf(dir) {
			if _, wanted := sockets[inode]; wanted {
				owners[inode] = append(owners[inode], describe(dir, pid))
			}
		}
	}
	return owners, nil
}

// socketsOf returns the inodes of the sockets that the process below dir has open, each once.
func socketsOf(dir string) []string {
	descriptors, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return nil
	}
	var inodes []string
	for _, descriptor := range descriptors {
		link, err := os.Readlink(filepath.Join(dir, "fd", descriptor.Name()))
		if err != nil {
			continue
		}
		if inode, is := strings.CutPrefix(link, "socket:["); is {
			inode = strings.TrimSuffix(inode, "]")
			if !slices.Contains(inodes, inode) {
				inodes = append(inodes, inode)
			}
		}
	}
	return inodes
}

func describe(dir string, pid int) Owner {
	owner := Owner{PID: pid}
	if link, err := os.Readlink(filepath.Join(dir, "exe")); err == nil {
		owner.Executable = strings.TrimSuffix(link, deleted)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "cgroup")); err == nil {
		owner.Unit = unitOf(string(data))
	}
	return owner
}

// unitOf finds the units in the cgroup of a process: those of the unified hierarchy, or
// of systemd's own on a host with version 1.
func unitOf(cgroup string) string {
	for line := range strings.Lines(cgroup) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		if controllers != "" && controllers != "name=systemd" {
			continue
		}
		var units []string
		for part := range strings.SplitSeq(path, "/") {
			if strings.HasSuffix(part, ".service") || strings.HasSuffix(part, ".scope") {
				units = append(units, part)
			}
		}
		if len(units) > 0 {
			return strings.Join(units, "/")
		}
	}
	return ""
}

// Inside tells whether the process runs with the folder tree as its root and was started
// from that tree's file named program, wherever the tree has it, or from one that has been
// replaced or removed since. What cannot be read is not inside.
func (o Owner) Inside(proc, tree, program string) bool {
	dir := filepath.Join(proc, strconv.Itoa(o.PID))
	root, err := os.Stat(filepath.Join(dir, "root"))
	if err != nil {
		return false
	}
	want, err := os.Stat(tree)
	if err != nil || !os.SameFile(root, want) || filepath.Base(o.Executable) != program {
		return false
	}
	link, err := os.Readlink(filepath.Join(dir, "exe"))
	if err != nil {
		return false
	}
	return strings.HasSuffix(link, deleted) || sameFile(filepath.Join(dir, "exe"), tree, o.Executable)
}

// sameFile compares the running file with the tree's by inode: what only has the same
// path may be a mount that hides the tree's file.
func sameFile(running, tree, executable string) bool {
	have, err := os.Stat(running)
	if err != nil {
		return false
	}
	root, err := os.OpenRoot(tree)
	if err != nil {
		return false
	}
	defer root.Close()
	want, err := root.Stat(strings.TrimPrefix(executable, "/"))
	return err == nil && os.SameFile(have, want)
}
