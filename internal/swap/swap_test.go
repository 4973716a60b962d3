package swap

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	const heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	for _, test := range []struct {
		name string
		text string
		want []Area
		fail bool
	}{
		{name: "empty"},
		{name: "none", text: heading},
		{
			name: "three",
			text: heading + "/dev/sda2   partition\t8388604\t\t0\t\t-2\n/my\\040swap\\134file file\t\t1024\t\t12\t\t-3\n/dev/zram0 partition\t100\t0\t100\n",
			want: []Area{{"/dev/sda2", "-2"}, {`/my swap\file`, "-3"}, {"/dev/zram0", "100"}},
		},
		{name: "unknown", text: heading + "/dev/sda2 partition\n", fail: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parse(test.text)
			if diff := cmp.Diff(test.want, got); diff != "" || (err != nil) != test.fail {
				t.Errorf("parse: %v, want failure %v (-want +got):\n%s", err, test.fail, diff)
			}
		})
	}
}

func TestOff(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	path := filepath.Join(t.TempDir(), "swap file")
	if err := os.WriteFile(path, make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), "mkswap", path).CombinedOutput(); err != nil {
		t.Skipf("mkswap: %v: %s", err, output)
	}
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(name)), 0, 0); errno != 0 {
		t.Skipf("swapon: %v", errno)
	}
	t.Cleanup(func() { _ = Off("/", path) })
	active := func() bool {
		areas, err := List("/")
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(areas, func(a Area) bool { return a.Path == path })
	}
	if !active() {
		t.Fatal("the area is not listed")
	}
	for range 2 { // the second finds it off
		if err := Off("/", path); err != nil {
			t.Fatal(err)
		}
		if active() {
			t.Fatal("the area is still listed")
		}
	}
}
