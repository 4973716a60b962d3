//go:build linux && amd64 && (host || fault)

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// programName is what the test calls itself when it is the program that is traced.
const programName = "program-under-test"

func TestMain(m *testing.M) {
	switch os.Args[0] {
	case childName:
		fmt.Fprintln(os.Stderr, becomeProgram(os.Args[1:]))
		os.Exit(127)
	}
	if len(os.Args) == 3 && os.Args[1] == programName {
		os.Exit(program(os.Args[2]))
	}
	os.Exit(m.Run())
}

// program changes a folder from threads that take turns, and from a child.
func program(dir string) int {
	var group sync.WaitGroup
	turn := make([]chan bool, 5)
	for n := range turn {
		turn[n] = make(chan bool, 1)
	}
	turn[0] <- true
	failed := 0
	for n := range 4 {
		group.Go(func() {
			<-turn[n]
			name := filepath.Join(dir, fmt.Sprint("f", n))
			if err := os.WriteFile(name+".tmp", []byte("x"), 0o600); err != nil {
				failed++
			} else if err := os.Rename(name+".tmp", name); err != nil {
				failed++
			}
			turn[n+1] <- true
		})
	}
	group.Wait()
	if exec.Command("mkdir", filepath.Join(dir, "d")).Run() != nil {
		failed++
	}
	return failed
}

// injector is this program, built.
func injector(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "inject")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func inject(t *testing.T, injector, dir string, args ...string) Report {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	command := exec.Command(injector, append(args, "--", self, programName, dir)...)
	command.Stdout, command.Stderr = &out, &errs
	_ = command.Run()
	var report Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("report %q: %v; %s", &out, err, &errs)
	}
	return report
}

// names is what is in a folder.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return strings.Join(all, " ")
}

// Two runs count the same calls in the same order.
func TestCountIsTheSame(t *testing.T) {
	path := injector(t)
	var lists []string
	for range 5 {
		dir := t.TempDir()
		list := filepath.Join(t.TempDir(), "list")
		if got := inject(t, path, dir, "--trace", list); got.Calls != 13 || got.Fired || got.Exit != 0 {
			t.Errorf("report = %+v, want 13 calls", got)
		}
		data, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		lists = append(lists, strings.ReplaceAll(string(data), dir, "D"))
	}
	for _, list := range lists[1:] {
		if list != lists[0] {
			t.Errorf("two runs differ:\n%s\n%s", lists[0], list)
		}
	}
	if !strings.HasSuffix(lists[0], "openat D/f3.tmp\nwrite D/f3.tmp\nrenameat D/f3\nmkdir D/d\n") {
		t.Errorf("calls:\n%s", lists[0])
	}
}

// Killed at call N, the calls before it are done and no other.
func TestKill(t *testing.T) {
	path := injector(t)
	for at, want := range map[int]string{
		1: "", 2: "f0.tmp", 3: "f0.tmp", 4: "f0", 6: "f0 f1.tmp", 13: "f0 f1 f2 f3", 14: "d f0 f1 f2 f3",
	} {
		dir := t.TempDir()
		got := inject(t, path, dir, "--do", "kill", "--at", fmt.Sprint(at))
		if fired := at <= 13; got.Fired != fired || fired && (got.Exit != 137 || got.Calls != at) {
			t.Errorf("killed at %d: %+v", at, got)
		}
		if have := names(t, dir); have != want {
			t.Errorf("killed at %d: %q, want %q", at, have, want)
		}
	}
}

func TestErrors(t *testing.T) {
	path := injector(t)
	for _, test := range []struct {
		name string
		args []string
		exit int
		want string
	}{
		{"open", []string{"--do", "EIO", "--at", "1"}, 1, "d f1 f2 f3"},
		{"rename", []string{"--do", "EROFS", "--at", "3"}, 1, "d f0.tmp f1 f2 f3"},
		{"in a child", []string{"--do", "ENOSPC", "--at", "13"}, 1, "f0 f1 f2 f3"},
		{"each", []string{"--do", "EDQUOT", "--at", "4", "--from"}, 4, "f0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if got := inject(t, path, dir, test.args...); !got.Fired || got.Exit != test.exit {
				t.Errorf("report = %+v, want exit %d", got, test.exit)
			}
			if have := names(t, dir); have != test.want {
				t.Errorf("%q, want %q", have, test.want)
			}
		})
	}
}

func TestHold(t *testing.T) {
	path := injector(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	command := exec.Command(path, "--do", "hold", "--at", "4", "--", self, programName, dir)
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	reports := json.NewDecoder(out)
	var report Report
	if err := reports.Decode(&report); err != nil || report.Exit != -1 || report.Calls != 4 || names(t, dir) != "f0" {
		t.Errorf("held: %+v, %v, %q", report, err, names(t, dir))
	}
	if err := command.Process.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if err := reports.Decode(&report); err != nil || report.Exit != 0 || names(t, dir) != "d f0 f1 f2 f3" {
		t.Errorf("let go: %+v, %v, %q", report, err, names(t, dir))
	}
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
}

func TestBusMember(t *testing.T) {
	message := dbus.Message{Type: dbus.TypeMethodCall, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath:        dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/systemd1")),
		dbus.FieldInterface:   dbus.MakeVariant("org.freedesktop.systemd1.Manager"),
		dbus.FieldDestination: dbus.MakeVariant("org.freedesktop.systemd1"),
		dbus.FieldSignature:   dbus.MakeVariant(dbus.ParseSignatureMust("ss")),
		dbus.FieldMember:      dbus.MakeVariant("StartUnit"),
	}, Body: []any{"a.service", "replace"}}
	for range 20 { // the order of the fields is that of a map
		var data bytes.Buffer
		if err := message.EncodeTo(&data, binary.LittleEndian); err != nil {
			t.Fatal(err)
		}
		if got := busMember(data.Bytes()); got != "StartUnit" {
			t.Errorf("busMember() = %q", got)
		}
	}
	for _, data := range []string{"", "\x00AUTH EXTERNAL 30\r\n", "l\x01\x00\x01aaaabbbb\xff\xff\xff\xffxxxxxxxxxxxx"} {
		if got := busMember([]byte(data)); got != "" {
			t.Errorf("busMember(%q) = %q", data, got)
		}
	}
}
