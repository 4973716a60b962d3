//go:build linux && amd64

package main

import (
	"fmt"
	"os"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childName is what this program calls itself while it becomes the traced one.
const childName = "inject-child"

// becomeProgram installs the filter and executes the program; it returns only if it cannot.
func becomeProgram(program []string) error {
	path, err := exec.LookPath(program[0])
	if err != nil {
		return err
	}
	if err := filter(); err != nil {
		return fmt.Errorf("install the filter: %w", err)
	}
	return fmt.Errorf("execute %s: %w", path, unix.Exec(path, program, os.Environ()))
}

// Offsets in struct seccomp_data.
const (
	offsetNumber   = 0
	offsetArgument = 16
)

// filter makes the calls that may change something stop for the tracer. It holds for this
// thread and all that come of it.
func filter() error {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		bits  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		give  = unix.BPF_RET | unix.BPF_K
	)
	code := []unix.SockFilter{{Code: load, K: offsetNumber}}
	for number := range mutating() {
		stop := unix.SockFilter{Code: give, K: unix.SECCOMP_RET_TRACE}
		argument, isOpen := map[uint32]uint32{unix.SYS_OPEN: 1, unix.SYS_OPENAT: 2}[number]
		if !isOpen {
			code = append(code, unix.SockFilter{Code: equal, Jf: 1, K: number}, stop)
			continue
		}
		// Most opens only read.
		code = append(code,
			unix.SockFilter{Code: equal, Jf: 4, K: number},
			unix.SockFilter{Code: load, K: offsetArgument + 8*argument},
			unix.SockFilter{Code: bits, Jf: 1, K: openChanges}, stop,
			unix.SockFilter{Code: give, K: unix.SECCOMP_RET_ALLOW})
	}
	code = append(code, unix.SockFilter{Code: give, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	if errno == unix.EACCES { // not root: then without new privileges
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		_, _, errno = unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	}
	if errno != 0 {
		return errno
	}
	return nil
}
