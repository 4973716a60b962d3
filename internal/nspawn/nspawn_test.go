package nspawn_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/config"
	"unbounded/internal/golden"
	"unbounded/internal/nspawn"
)

func TestFiles(t *testing.T) {
	t.Parallel()
	all := &config.Config{
		Devices: []string{"/dev/fuse", "/dev/kvm", "char-usb_device", "/dev/100%"},
		Mounts:  []config.Mount{{Source: "/srv/data", Target: "/data", ReadOnly: true}, {Source: "/srv/x", Target: "/srv/x"}},
	}
	devices := nspawn.Devices{
		Nodes:    []string{"/dev/kmsg", "/dev/kvm", "/dev/net/tun", "/dev/sda", "/dev/sda1"},
		ReadOnly: []string{"/lib/modules"},
		Missing:  []string{"/dev/100%"},
	}
	for _, test := range []struct {
		name, slot string
		config     *config.Config
		devices    nspawn.Devices
	}{
		{"bare", "kube1", &config.Config{}, nspawn.Devices{}},
		{"all", "kube2", all, devices},
	} {
		settings := nspawn.Settings(test.slot, test.config, test.devices)
		dropIn := nspawn.DropIn(test.slot, "/opt/unbounded", test.config, test.devices)
		golden.Check(t, "testdata/"+test.name+".nspawn", settings)
		golden.Check(t, "testdata/"+test.name+".conf", dropIn)
		golden.Check(t, "testdata/"+test.name+".mount", nspawn.Mount(test.slot))
		for line := range strings.Lines(settings) {
			node, bound := strings.CutPrefix(strings.TrimSpace(line), "Bind=/dev/")
			if bound && !strings.Contains(dropIn, "\nDeviceAllow=/dev/"+strings.ReplaceAll(node, "%", "%%")+" r") {
				t.Errorf("%s: /dev/%s is bound and not allowed", test.name, node)
			}
		}
	}
}

func TestDiscover(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	// A link to a device is one to os.Stat, and needs no privilege.
	for _, node := range []string{"kmsg", "net/tun", "sda", "sda1", "mapper/x", "loop0", "zram0", "cciss/c0d0", "infiniband/uverbs0", "kfd", "dri/card0", "dri/renderD128", "dri/by-path"} {
		path := filepath.Join(root, "dev", node)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/dev/null", path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "dev/kvm"), nil, 0o600); err != nil { // no device
		t.Fatal(err)
	}
	for _, path := range []string{"sys/class/block/sda", "sys/class/block/sda1", "sys/class/block/loop0", "sys/class/block/zram0", "sys/class/block/cciss!c0d0", "sys/class/block/dm-7", "lib/modules", "sys/class/kfd"} {
		if err := os.MkdirAll(filepath.Join(root, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	have, err := nspawn.Discover(root, "/dev/sda", "/dev/kvm", "char-x", "/dev/gone")
	if err != nil {
		t.Fatal(err)
	}
	want := nspawn.Devices{
		Nodes:    []string{"/dev/cciss/c0d0", "/dev/dri/card0", "/dev/dri/renderD128", "/dev/infiniband/uverbs0", "/dev/kfd", "/dev/kmsg", "/dev/net/tun", "/dev/sda", "/dev/sda1"},
		ReadOnly: []string{"/lib/modules", "/sys/class/kfd"},
		Missing:  []string{"/dev/kvm", "/dev/gone"},
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("Discover (-want +have):\n%s", diff)
	}
	if have, err := nspawn.Discover(t.TempDir()); err != nil || len(have.Nodes)+len(have.ReadOnly) > 0 {
		t.Errorf("Discover(empty) = %v, %v", have, err)
	}
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	const settings = "[Files]\nBind=/run/x:/y\nBind=/dev/sda\n# not there: Bind=/dev/sdb\nBind=/dev/sdc\n# Bind=/dev/sdd\nBind=/srv:/srv\n"
	all := func(string) bool { return true }
	for _, test := range []struct {
		name, settings, want string
		nodes                []string
		exists               func(string) bool
	}{
		{"same", settings, settings, []string{"/dev/sda"}, func(node string) bool { return node != "/dev/sdb" }},
		{
			"gone and back", settings,
			"[Files]\nBind=/run/x:/y\n# not there: Bind=/dev/sda\nBind=/dev/sdb\nBind=/dev/sdc\n# Bind=/dev/sdd\nBind=/srv:/srv\n",
			nil, func(node string) bool { return node != "/dev/sda" },
		},
		{
			"new", settings,
			"[Files]\nBind=/run/x:/y\nBind=/dev/sda\nBind=/dev/sdb\nBind=/dev/sdc\nBind=/dev/sdx\n# Bind=/dev/sdd\nBind=/srv:/srv\n",
			[]string{"/dev/sda", "/dev/sdx"},
			all,
		},
		{"first", "[Files]\nBind=/a:/b\n", "[Files]\nBind=/dev/sda\nBind=/a:/b\n", []string{"/dev/sda"}, all},
		{"nothing", "", "", nil, all},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			have := nspawn.Refresh(test.settings, nspawn.Devices{Nodes: test.nodes}, test.exists)
			if diff := cmp.Diff(test.want, have); diff != "" {
				t.Errorf("Refresh (-want +have):\n%s", diff)
			}
			if again := nspawn.Refresh(have, nspawn.Devices{Nodes: test.nodes}, test.exists); again != have {
				t.Errorf("second Refresh = %q", again)
			}
		})
	}
}
