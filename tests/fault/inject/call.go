//go:build linux && amd64

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// call is one change to the world.
type call struct {
	name, object string
	file         bool // a disk that is full or broken can refuse it
}

func (c call) String() string { return c.name + " " + c.object }

// openChanges are the flags of an open that creates, empties, or comes before a write.
const openChanges = unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC

// shape says where the arguments of a call are. Zero is the first argument.
type shape struct {
	name string
	kind kind
	at   int // the first argument that matters
}

type kind int

const (
	onPath     kind = iota // argument at is a path
	onAt                   // arguments at and at+1 are a folder and a path in it
	onFile                 // argument at is a descriptor of a file
	onOpen                 // open(path, flags)
	onOpenAt               // openat(folder, path, flags)
	onOpenHow              // openat2(folder, path, how)
	onData                 // descriptor, buffer, length: a file or a socket
	onVectors              // descriptor, vectors
	onMessage              // descriptor, message header
	onFlags                // ioctl: only those that set flags of a file, or clone one
	onSignal               // kill(process, signal)
	onWhatever             // counts, whatever its arguments
)

// mutating are the calls that can change something.
func mutating() map[uint32]shape {
	return map[uint32]shape{
		unix.SYS_OPEN: {"open", onOpen, 0}, unix.SYS_OPENAT: {"openat", onOpenAt, 0}, unix.SYS_OPENAT2: {"openat2", onOpenHow, 0},
		unix.SYS_CREAT: {"creat", onPath, 0},
		unix.SYS_WRITE: {"write", onData, 0}, unix.SYS_PWRITE64: {"pwrite", onData, 0},
		unix.SYS_WRITEV: {"writev", onVectors, 0}, unix.SYS_PWRITEV: {"pwritev", onVectors, 0}, unix.SYS_PWRITEV2: {"pwritev2", onVectors, 0},
		unix.SYS_SENDTO: {"sendto", onData, 0}, unix.SYS_SENDMSG: {"sendmsg", onMessage, 0}, unix.SYS_SENDMMSG: {"sendmmsg", onMessage, 0},
		unix.SYS_COPY_FILE_RANGE: {"copy_file_range", onFile, 2}, unix.SYS_SENDFILE: {"sendfile", onFile, 0}, unix.SYS_SPLICE: {"splice", onFile, 2},
		unix.SYS_FTRUNCATE: {"ftruncate", onFile, 0}, unix.SYS_TRUNCATE: {"truncate", onPath, 0}, unix.SYS_FALLOCATE: {"fallocate", onFile, 0},
		unix.SYS_RENAME: {"rename", onPath, 1}, unix.SYS_RENAMEAT: {"renameat", onAt, 2}, unix.SYS_RENAMEAT2: {"renameat2", onAt, 2},
		unix.SYS_UNLINK: {"unlink", onPath, 0}, unix.SYS_UNLINKAT: {"unlinkat", onAt, 0}, unix.SYS_RMDIR: {"rmdir", onPath, 0},
		unix.SYS_MKDIR: {"mkdir", onPath, 0}, unix.SYS_MKDIRAT: {"mkdirat", onAt, 0},
		unix.SYS_LINK: {"link", onPath, 1}, unix.SYS_LINKAT: {"linkat", onAt, 2},
		unix.SYS_SYMLINK: {"symlink", onPath, 1}, unix.SYS_SYMLINKAT: {"symlinkat", onAt, 1},
		unix.SYS_MKNOD: {"mknod", onPath, 0}, unix.SYS_MKNODAT: {"mknodat", onAt, 0},
		unix.SYS_CHMOD: {"chmod", onPath, 0}, unix.SYS_FCHMOD: {"fchmod", onFile, 0},
		unix.SYS_FCHMODAT: {"fchmodat", onAt, 0}, unix.SYS_FCHMODAT2: {"fchmodat2", onAt, 0},
		unix.SYS_CHOWN: {"chown", onPath, 0}, unix.SYS_LCHOWN: {"lchown", onPath, 0},
		unix.SYS_FCHOWN: {"fchown", onFile, 0}, unix.SYS_FCHOWNAT: {"fchownat", onAt, 0},
		unix.SYS_UTIMENSAT: {"utimensat", onAt, 0},
		unix.SYS_SETXATTR:  {"setxattr", onPath, 0}, unix.SYS_LSETXATTR: {"lsetxattr", onPath, 0}, unix.SYS_FSETXATTR: {"fsetxattr", onFile, 0},
		unix.SYS_REMOVEXATTR: {"removexattr", onPath, 0}, unix.SYS_LREMOVEXATTR: {"lremovexattr", onPath, 0}, unix.SYS_FREMOVEXATTR: {"fremovexattr", onFile, 0},
		unix.SYS_FSYNC: {"fsync", onFile, 0}, unix.SYS_FDATASYNC: {"fdatasync", onFile, 0}, unix.SYS_SYNCFS: {"syncfs", onFile, 0}, unix.SYS_SYNC: {"sync", onWhatever, 0},
		unix.SYS_IOCTL: {"ioctl", onFlags, 0},
		unix.SYS_MOUNT: {"mount", onPath, 1}, unix.SYS_UMOUNT2: {"umount", onPath, 0}, unix.SYS_MOVE_MOUNT: {"move_mount", onWhatever, 0},
		unix.SYS_SWAPON: {"swapon", onPath, 0}, unix.SYS_SWAPOFF: {"swapoff", onPath, 0},
		unix.SYS_INIT_MODULE: {"init_module", onWhatever, 0}, unix.SYS_FINIT_MODULE: {"finit_module", onWhatever, 0}, unix.SYS_DELETE_MODULE: {"delete_module", onPath, 0},
		unix.SYS_KILL: {"kill", onSignal, 0}, unix.SYS_PIDFD_SEND_SIGNAL: {"pidfd_send_signal", onSignal, 0},
	}
}

// classify says what a call changes, and whether it counts.
func classify(p *peer, regs *unix.PtraceRegs) (call, bool) {
	s, known := mutating()[uint32(regs.Orig_rax)]
	if !known {
		return call{}, false
	}
	args := [6]uint64{regs.Rdi, regs.Rsi, regs.Rdx, regs.R10, regs.R8, regs.R9}
	c := call{name: s.name, file: true}
	at := args[s.at]
	switch s.kind {
	case onPath:
		c.object = p.text(at)
		c.file = s.name != "delete_module"
	case onAt:
		c.object = p.inFolder(at, args[s.at+1])
	case onFile:
		c.object = p.descriptor(at)
		return c, isFile(c.object)
	case onOpen:
		c.object = p.text(at)
		return c, !isDevice(c.object)
	case onOpenAt:
		c.object = p.inFolder(at, args[1])
		return c, !isDevice(c.object)
	case onOpenHow:
		c.object = p.inFolder(at, args[1])
		return c, p.number(args[2])&openChanges != 0
	case onData, onVectors, onMessage:
		return p.written(c, s.kind, args)
	case onFlags:
		c.object = p.descriptor(at)
		return c, args[1] == unix.FS_IOC_SETFLAGS || args[1] == unix.FICLONE
	case onSignal:
		c.object, c.file = "with "+unix.SignalName(unix.Signal(args[1])), false
		return c, args[1] != 0
	case onWhatever:
		c.file = s.name == "sync"
	}
	return c, true
}

// written is for calls that write: to files they count, to sockets if they ask for a change.
func (p *peer) written(c call, k kind, args [6]uint64) (call, bool) {
	c.object = p.descriptor(args[0])
	if !strings.HasPrefix(c.object, "socket:") {
		return c, isFile(c.object)
	}
	c.file = false
	data, length := args[1], args[2]
	if k == onMessage {
		data = p.number(args[1] + 16) // msg_iov
	}
	if k != onData {
		data, length = p.number(data), p.number(data+8) // the first vector
	}
	what, changes := p.request(int(args[0]), p.bytes(data, int(min(length, 4096))))
	c.object = what
	return c, changes
}

// isFile tells a file by its path; what only lives in memory, or is a device, is none.
func isFile(name string) bool {
	return strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "/memfd:") && !isDevice(name)
}

func isDevice(name string) bool { return strings.HasPrefix(name, "/dev/") }

// peer is the thread that makes the call.
type peer struct{ thread int }

func (p *peer) proc(name string) string { return "/proc/" + strconv.Itoa(p.thread) + "/" + name }

// bytes reads memory of the thread; less at the end of what it has.
func (p *peer) bytes(at uint64, length int) []byte {
	if length == 0 || at == 0 {
		return nil
	}
	data := make([]byte, length)
	n, err := unix.ProcessVMReadv(p.thread, []unix.Iovec{{Base: &data[0], Len: uint64(length)}},
		[]unix.RemoteIovec{{Base: uintptr(at), Len: length}}, 0)
	if err != nil {
		return nil
	}
	return data[:n]
}

func (p *peer) number(at uint64) uint64 {
	data := p.bytes(at, 8)
	if len(data) < 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(data)
}

// text reads a string, page by page, since nothing may lie behind it.
func (p *peer) text(at uint64) string {
	var text []byte
	for len(text) < unix.PathMax {
		page := p.bytes(at, 4096-int(at%4096))
		if len(page) == 0 {
			break
		}
		if before, _, found := strings.Cut(string(page), "\x00"); found {
			return string(text) + before
		}
		text, at = append(text, page...), at+uint64(len(page))
	}
	return string(text)
}

// descriptor names what a descriptor is open on.
func (p *peer) descriptor(fd uint64) string {
	name, err := os.Readlink(p.proc("fd/" + strconv.Itoa(int(int32(fd)))))
	if err != nil {
		return "?"
	}
	return name
}

// inFolder joins a folder's descriptor and a path.
func (p *peer) inFolder(folder, at uint64) string {
	name := p.text(at)
	switch {
	case path.IsAbs(name):
		return name
	case int32(folder) == unix.AT_FDCWD:
		dir, _ := os.Readlink(p.proc("cwd"))
		return path.Join(dir, name)
	default:
		return path.Join(p.descriptor(folder), name)
	}
}

// request says what is asked for on a socket, and whether that changes something.
func (p *peer) request(fd int, data []byte) (string, bool) {
	socket, err := p.socket(fd)
	if err != nil {
		return err.Error(), false
	}
	defer unix.Close(socket)
	family, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err.Error(), false
	}
	switch family {
	case unix.AF_NETLINK:
		protocol, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PROTOCOL)
		if err != nil {
			return err.Error(), false
		}
		return netlinkRequest(protocol, data)
	case unix.AF_UNIX:
		address, err := unix.Getpeername(socket)
		if err != nil {
			return err.Error(), false
		}
		if name, ok := address.(*unix.SockaddrUnix); ok && (path.Base(name.Name) == "system_bus_socket" || path.Base(name.Name) == "private") {
			member := busMember(data)
			return "bus " + member, member != "" && !readsOnly(member)
		}
	}
	return "socket", false
}

// socket is a descriptor of the thread, here.
func (p *peer) socket(fd int) (int, error) {
	process, err := p.process()
	if err != nil {
		return 0, err
	}
	handle, err := unix.PidfdOpen(process, 0)
	if err != nil {
		return 0, fmt.Errorf("process %d: %w", process, err)
	}
	defer unix.Close(handle)
	return unix.PidfdGetfd(handle, fd, 0)
}

// process is that of the thread.
func (p *peer) process() (int, error) {
	status, err := os.ReadFile(p.proc("status"))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "\nTgid:")
	line, _, _ := strings.Cut(rest, "\n")
	return strconv.Atoi(strings.TrimSpace(line))
}

// netlinkRequest looks at the first message.
func netlinkRequest(protocol int, data []byte) (string, bool) {
	if len(data) < unix.NLMSG_HDRLEN {
		return "netlink", false
	}
	message := int(binary.LittleEndian.Uint16(data[4:]))
	flags := int(binary.LittleEndian.Uint16(data[6:]))
	what := fmt.Sprintf("netlink %d message %#x", protocol, message)
	switch protocol {
	case unix.NETLINK_ROUTE:
		return what, message >= unix.RTM_BASE && message%4 != unix.RTM_GETLINK%4
	case unix.NETLINK_NETFILTER:
		return what, message == unix.NFNL_MSG_BATCH_BEGIN
	default:
		return what, flags&unix.NLM_F_ACK != 0
	}
}

// readsOnly tells of a method of systemd, machined or the bus that it changes nothing.
func readsOnly(member string) bool {
	for _, prefix := range []string{"Get", "List", "Load", "Hello", "AddMatch", "RemoveMatch", "NameHasOwner", "Ping", "Introspect", "Subscribe", "Unsubscribe"} {
		if strings.HasPrefix(member, prefix) {
			return true
		}
	}
	return false
}

// busMember is the method that a D-Bus message calls, empty if it is none.
func busMember(data []byte) string {
	const methodCall, member = 1, 3
	if len(data) < 16 || data[0] != 'l' || data[1] != methodCall || data[3] != 1 {
		return ""
	}
	end := min(16+int(binary.LittleEndian.Uint32(data[12:])), len(data))
	for at := 16; at+8 <= end; at = (at + 7) &^ 7 {
		code, signature := data[at], data[at+2]
		at += 4 // the value; it is aligned already
		switch signature {
		case 's', 'o':
			length := int(binary.LittleEndian.Uint32(data[at:]))
			if length < 0 || length > end-at-4 {
				return ""
			}
			if code == member {
				return string(data[at+4 : at+4+length])
			}
			at += 4 + length + 1
		case 'g':
			at += 1 + int(data[at]) + 1
		default:
			at += 4
		}
	}
	return ""
}
