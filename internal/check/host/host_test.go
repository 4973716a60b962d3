package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"unbounded/internal/check"
	"unbounded/internal/config"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

// units answers by name; others are not there.
type units map[string]systemd.Properties

func (u units) Properties(_ context.Context, name string) (systemd.Properties, error) {
	if p, ok := u[name]; ok {
		return p, nil
	}
	return systemd.Properties{ActiveState: "inactive", LoadState: "not-found"}, nil
}

var active = systemd.Properties{ActiveState: "active", LoadState: "loaded"}

// mount is what statfs says of a path and everything below it.
type mount struct {
	flags int64
	kind  int64
	id    int32
	free  uint64 // bytes
}

// made is a made-up host: files with content (a name ending in / is a folder), links, and mounts.
func made(t *testing.T, files, links map[string]string, mounts map[string]mount) *Host {
	t.Helper()
	root := t.TempDir()
	var table strings.Builder
	table.WriteString("1 0 0:1 / / rw - ext4 /dev/a rw\n")
	for path := range mounts {
		if path != "/" {
			fmt.Fprintf(&table, "2 1 0:2 / %s rw - tmpfs tmpfs rw\n", strings.ReplaceAll(path, " ", `\040`))
		}
	}
	all := map[string]string{"/proc/self/mountinfo": table.String(), "/usr/bin/": "", "/proc/net/tcp": "heading\n"}
	for name, content := range files {
		all[name] = content
	}
	for name, content := range all {
		path := root + name
		if strings.HasSuffix(name, "/") {
			mkdir(t, path)
			continue
		}
		mkdir(t, filepath.Dir(path))
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range links {
		mkdir(t, filepath.Dir(root+name))
		if err := os.Symlink(target, root+name); err != nil {
			t.Fatal(err)
		}
	}
	statfs := func(path string, stat *unix.Statfs_t) error {
		if _, err := os.Lstat(path); err != nil {
			return errors.Unwrap(err)
		}
		path = "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		best := "/"
		for name := range mounts {
			if (path == name || strings.HasPrefix(path, name+"/")) && len(name) > len(best) {
				best = name
			}
		}
		m := mounts[best]
		*stat = unix.Statfs_t{Flags: m.flags, Type: m.kind, Bsize: 4096, Bavail: m.free / 4096, Fsid: unix.Fsid{Val: [2]int32{m.id, 0}}}
		return nil
	}
	return &Host{Root: root, Prefix: paths.DefaultRoot, Slot: "kube1", Units: units{}, Statfs: statfs, Program: func(string) bool { return true }}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// look runs the check called name.
func look(t *testing.T, h *Host, name string) []check.Result {
	t.Helper()
	for _, c := range h.Checks() {
		if c.Name == name {
			return c.Look(t.Context())
		}
	}
	t.Fatalf("no check is called %s", name)
	return nil
}

func expect(t *testing.T, results []check.Result, want check.Severity, parts ...string) {
	t.Helper()
	if len(results) == 0 {
		t.Fatalf("no result, want %s", want)
	}
	text := ""
	for _, result := range results {
		if result.Severity != want {
			t.Errorf("%s: %s, want %s", result.Severity, result, want)
		}
		if result.Severity == check.Error && result.Remedy == "" {
			t.Errorf("no remedy for %s", result)
		}
		text += result.String() + "\n"
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q, want %q in it", text, part)
		}
	}
}

const id = "0123456789abcdef0123456789abcdef\n"

func TestChecks(t *testing.T) {
	withoutQOS := &config.Config{Kubelet: map[string]any{"cgroupsPerQOS": false}}
	v2 := map[string]mount{"/sys/fs/cgroup": {kind: unix.CGROUP2_SUPER_MAGIC}}
	machined := units{"systemd-machined.service": {LoadState: "loaded", ActiveState: "inactive"}}
	booted := map[string]string{"/run/systemd/system/": ""}
	for _, test := range []struct {
		name   string
		check  string
		files  map[string]string
		links  map[string]string
		mounts map[string]mount
		set    func(*Host)
		want   check.Severity
		parts  []string
	}{
		{name: "root", check: "is-privileged-user", want: check.OK},
		{name: "user", check: "is-privileged-user", set: func(h *Host) { h.UID = 1000 }, want: check.Error, parts: []string{"uid 1000"}},

		{name: "machine-id", check: "machine-id", files: map[string]string{"/etc/machine-id": id}, want: check.OK},
		{name: "no machine-id", check: "machine-id", want: check.Warning, parts: []string{"systemd-machine-id-setup"}},
		{name: "empty machine-id", check: "machine-id", files: map[string]string{"/etc/machine-id": "\n"}, want: check.Warning, parts: []string{"is empty"}},
		{name: "uninitialized machine-id", check: "machine-id", files: map[string]string{"/etc/machine-id": "uninitialized\n"}, want: check.Warning},
		{name: "odd machine-id", check: "machine-id", files: map[string]string{"/etc/machine-id": "host-1\n"}, want: check.Warning, parts: []string{"32"}},
		{
			name: "machine-id of this boot", check: "machine-id", files: map[string]string{"/etc/machine-id": id},
			mounts: map[string]mount{"/etc/machine-id": {}}, want: check.Warning, parts: []string{"this boot only"},
		},

		{
			name: "secret configuration", check: "secret-files", files: map[string]string{paths.Config: "{}"},
			set: func(h *Host) { _ = os.Chmod(h.at(paths.Config), 0o600) }, want: check.OK,
		},
		{
			name: "configuration for all to read", check: "secret-files", files: map[string]string{paths.Config: "{}"},
			set:  func(h *Host) { _ = os.Chmod(h.at(paths.Config), 0o644) },
			want: check.Warning, parts: []string{paths.Config, "mode 0644", "chmod 600"},
		},
		{
			name: "registry credentials for all to read", check: "secret-files", files: map[string]string{"/etc/auth.json": "{}"},
			set: func(h *Host) {
				_ = os.Chmod(h.at("/etc/auth.json"), 0o640)
				h.Config = &config.Config{RegistryAuthFile: "/etc/auth.json"}
			},
			want: check.Warning, parts: []string{"/etc/auth.json", "mode 0640"},
		},

		{name: "writable", check: "host-os-configuration", want: check.OK},
		{
			name: "read-only /etc", check: "host-os-configuration", files: map[string]string{"/etc/": ""}, mounts: map[string]mount{"/etc": {flags: unix.ST_RDONLY}},
			want: check.Error, parts: []string{"/etc/systemd/system is on a read-only file system, mounted at /etc", "remount /etc"},
		},
		{
			name: "read-only state", check: "host-os-configuration", files: map[string]string{"/var/lib/": ""}, mounts: map[string]mount{"/var/lib": {flags: unix.ST_RDONLY}},
			want: check.Error, parts: []string{paths.State, paths.Content, "mounted at /var/lib"},
		},

		{name: "exec", check: "executable-paths", want: check.OK},
		{
			name: "noexec prefix", check: "executable-paths", files: map[string]string{"/opt/unbounded/": ""}, mounts: map[string]mount{"/opt": {flags: unix.ST_NOEXEC}},
			want: check.Error, parts: []string{"/opt/unbounded is mounted noexec, at /opt"},
		},
		{
			name: "noexec state", check: "executable-paths", files: map[string]string{"/var/lib/unbounded/": ""}, mounts: map[string]mount{"/var/lib/unbounded": {flags: unix.ST_NOEXEC}},
			want: check.Warning, parts: []string{"/var/lib/unbounded is mounted noexec, at /var/lib/unbounded", "remount"},
		},
		{
			name: "noexec machines, not made yet", check: "executable-paths", files: map[string]string{"/var/lib/": ""}, mounts: map[string]mount{"/var/lib": {flags: unix.ST_NOEXEC}},
			want: check.Error, parts: []string{"/var/lib/machines is mounted noexec, at /var/lib"},
		},

		{name: "nothing there", check: "nspawn-machine-provisioning", want: check.OK},
		{name: "a tree is there", check: "nspawn-machine-provisioning", files: map[string]string{paths.Tree("kube1") + "/etc/x": ""}, want: check.OK},
		{name: "machines is a link", check: "nspawn-machine-provisioning", links: map[string]string{paths.Machines: "/data"}, want: check.OK},
		{name: "tree is a link", check: "nspawn-machine-provisioning", links: map[string]string{paths.Tree("kube1"): "/data"}, want: check.Error, parts: []string{"a symbolic link"}},
		{name: "tree is a file", check: "nspawn-machine-provisioning", files: map[string]string{paths.Tree("kube1"): ""}, want: check.Error, parts: []string{"a file, not a folder"}},
		{name: "settings are a folder", check: "nspawn-machine-provisioning", files: map[string]string{paths.Nspawn("kube1") + "/x": ""}, want: check.Error, parts: []string{"a folder, not a file"}},
		{
			name: "tree is a mount", check: "nspawn-machine-provisioning", files: map[string]string{paths.Tree("kube1") + "/": ""},
			mounts: map[string]mount{paths.Tree("kube1"): {}}, want: check.Error, parts: []string{"is a mount point"},
		},

		{name: "runtime", check: "nspawn-runtime", files: booted, set: func(h *Host) { h.Units = machined }, want: check.OK},
		{name: "no systemd", check: "nspawn-runtime", want: check.Error, parts: []string{"not booted with systemd"}},
		{name: "no D-Bus", check: "nspawn-runtime", files: booted, set: func(h *Host) { h.Units = nil }, want: check.Error, parts: []string{"D-Bus"}},
		{name: "not installed yet", check: "nspawn-runtime", files: booted, want: check.Warning, parts: []string{"not installed yet"}},
		{
			name: "nothing to install it with", check: "nspawn-runtime", files: booted, set: func(h *Host) { h.Program = func(string) bool { return false } },
			want: check.Error, parts: []string{"no package manager", "system extension"},
		},
		{
			name: "masked machined", check: "nspawn-runtime", files: booted, set: func(h *Host) {
				h.Units = units{"systemd-machined.service": {LoadState: "masked"}}
			}, want: check.Error, parts: []string{"systemctl unmask systemd-machined.service"},
		},
		{
			name: "failed machined", check: "nspawn-runtime", files: booted, set: func(h *Host) {
				h.Units = units{"systemd-machined.service": {LoadState: "loaded", ActiveState: "failed", Result: "exit-code"}}
			}, want: check.Error, parts: []string{"has failed (exit-code)"},
		},

		{name: "programs", check: "host-packages", want: check.OK},
		{name: "missing, apt", check: "host-packages", set: only("apt-get", "mount", "modprobe"), want: check.Warning, parts: []string{"systemd-nspawn is missing; apt-get", "systemd-container"}},
		{name: "missing, no manager", check: "host-packages", set: only("mount", "modprobe"), want: check.Error, parts: []string{"lacks systemd-nspawn, systemd-nspawn@.service", "umount (package util-linux)", "no package manager", "another image"}},
		{
			name: "missing, Fedora CoreOS", check: "host-packages", files: map[string]string{"/etc/os-release": "ID=fedora\nVARIANT_ID=coreos\n"},
			set: only("mount", "umount", "mountpoint", "modprobe"), want: check.Error, parts: []string{"rpm-ostree install systemd-container"},
		},
		{
			name: "missing, /usr read-only", check: "host-packages", mounts: map[string]mount{"/usr": {flags: unix.ST_RDONLY}},
			set: only("apt-get", "mount", "modprobe"), want: check.Error, parts: []string{"no package manager"},
		},

		{name: "no docker", check: "docker-active", want: check.OK},
		{name: "docker", check: "docker-active", set: func(h *Host) { h.Units = units{"docker.socket": active} }, want: check.Warning, parts: []string{"docker.socket is active"}},
		{name: "containerd", check: "containerd-active", set: func(h *Host) { h.Units = units{"containerd.service": active} }, want: check.Warning},
		{name: "kubelet", check: "kubelet-active", set: func(h *Host) { h.Units = units{"kubelet.service": active} }, want: check.Warning},

		{name: "no swap", check: "swap-active", files: map[string]string{"/proc/swaps": "Filename Type Size Used Priority\n"}, want: check.OK},
		{
			name: "swap", check: "swap-active", files: map[string]string{"/proc/swaps": "Filename Type Size\n/dev/zram0 partition 1 0 100\n/swap\\040file file 1 0 -2\n"},
			want: check.Warning, parts: []string{"/dev/zram0, /swap file"},
		},
		{name: "no swap in the kernel", check: "swap-active", want: check.OK},
		{name: "swap cannot be told", check: "swap-active", files: map[string]string{"/proc/swaps": "heading\n/swap\n"}, want: check.Warning},

		{name: "no cgroups", check: "cgroups", want: check.Error},
		{name: "cgroup version 1", check: "cgroups", files: map[string]string{"/sys/fs/cgroup/": ""}, want: check.Error, parts: []string{"unified_cgroup_hierarchy"}},
		{name: "cgroups", check: "cgroups", files: map[string]string{"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids\n"}, mounts: v2, want: check.OK},
		{name: "controllers missing", check: "cgroups", files: map[string]string{"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu\n"}, mounts: v2, want: check.Error, parts: []string{"memory, pids"}},
		{
			name: "controllers not needed", check: "cgroups", files: map[string]string{"/sys/fs/cgroup/cgroup.controllers": "\n"}, mounts: v2,
			set: func(h *Host) { h.Config = withoutQOS }, want: check.Warning, parts: []string{"cpu, memory, pids"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := made(t, test.files, test.links, test.mounts)
			if test.set != nil {
				test.set(h)
			}
			expect(t, look(t, h, test.check), test.want, test.parts...)
		})
	}
}

func only(names ...string) func(*Host) {
	return func(h *Host) {
		h.Program = func(name string) bool { return strings.Contains(" "+strings.Join(names, " ")+" ", " "+name+" ") }
	}
}

func TestPorts(t *testing.T) {
	const listening = "   0: 00000000:280A 00000000:0000 0A 0:0 00:0 0 0 0 77 1 0 100\n"
	const six = "   0: 00000000000000000000000001000000:280A 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 77 1 0 100\n"
	tree, binary := paths.Tree("kube1"), paths.Tree("kube1")+"/usr/local/bin/kubelet"
	for _, test := range []struct {
		name  string
		files map[string]string
		links map[string]string
		set   func(*Host)
		want  check.Severity
		parts []string
	}{
		{name: "free", want: check.OK, parts: []string{"is free"}},
		{
			name: "foreign", files: map[string]string{"/proc/net/tcp": "heading\n" + listening, "/proc/8/cgroup": "0::/system.slice/nginx.service\n"},
			links: map[string]string{"/proc/8/fd/3": "socket:[77]", "/proc/8/exe": "/usr/sbin/nginx", "/proc/8/root": "/"},
			want:  check.Error, parts: []string{"kubelet needs port 10250", "0.0.0.0:10250", "pid 8 (/usr/sbin/nginx, nginx.service)", "stop and disable nginx.service"},
		},
		{
			name: "foreign, IPv6, no unit", files: map[string]string{"/proc/net/tcp6": "heading\n" + six},
			links: map[string]string{"/proc/8/fd/3": "socket:[77]"}, want: check.Error, parts: []string{"[::1]:10250", "executable unreadable", "stop process 8"},
		},
		{
			name: "no process found", files: map[string]string{"/proc/net/tcp": "heading\n" + listening},
			want: check.Error, parts: []string{"its process cannot be found"},
		},
		{
			name: "our kubelet, replaced by an update", files: map[string]string{"/proc/net/tcp": "heading\n" + listening, binary: ""},
			links: map[string]string{"/proc/8/fd/3": "socket:[77]", "/proc/8/exe": "/usr/local/bin/kubelet (deleted)", "/proc/8/root": "TREE"},
			want:  check.OK, parts: []string{"held by the kubelet of this machine"},
		},
		{
			name: "our containerd on kubelet's port", files: map[string]string{"/proc/net/tcp": "heading\n" + listening, binary: ""},
			links: map[string]string{"/proc/8/fd/3": "socket:[77]", "/proc/8/exe": "/usr/local/bin/containerd (deleted)", "/proc/8/root": "TREE"},
			want:  check.Error,
		},
		{
			name: "ours and a foreign one share it", files: map[string]string{"/proc/net/tcp": "heading\n" + listening, binary: ""},
			links: map[string]string{
				"/proc/8/fd/3": "socket:[77]", "/proc/8/exe": "/usr/local/bin/kubelet (deleted)", "/proc/8/root": "TREE",
				"/proc/9/fd/3": "socket:[77]", "/proc/9/exe": "/bin/sh",
			},
			want: check.Error, parts: []string{"pid 9"},
		},
		{
			name: "another port is configured", files: map[string]string{"/proc/net/tcp": "heading\n" + listening},
			set: func(h *Host) {
				h.Config = &config.Config{Kubelet: map[string]any{"port": json.Number("10350")}}
			},
			want: check.OK, parts: []string{"is free"},
		},
		{name: "cannot be told", files: map[string]string{"/proc/net/tcp": "heading\n 0: bad:bad 0 0A 1 1 1 1 1 1\n"}, want: check.Error},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := made(t, test.files, nil, nil)
			for name, target := range test.links {
				if target == "TREE" {
					target = h.Root + tree
				}
				mkdir(t, filepath.Dir(h.Root+name))
				if err := os.Symlink(target, h.Root+name); err != nil {
					t.Fatal(err)
				}
			}
			if test.set != nil {
				test.set(h)
			}
			results := look(t, h, "kubelet-bind-address")
			if test.name == "cannot be told" {
				if len(results) != 1 || results[0].Severity != check.Error {
					t.Errorf("got %v", results)
				}
				return
			}
			expect(t, results, test.want, test.parts...)
		})
	}
}

func TestDiskSpace(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		name     string
		size     int64
		machines mount
		content  mount
		files    map[string]string
		want     check.Severity
		parts    []string
	}{
		{name: "unknown, enough", size: -1, machines: mount{id: 1, free: 9 << 30}, content: mount{id: 1, free: 9 << 30}, want: check.OK},
		{name: "unknown, too little", size: -1, machines: mount{id: 1, free: 7 << 30}, content: mount{id: 1, free: 7 << 30}, want: check.Error, parts: []string{"7.0 GiB free, 8.0 GiB are needed for an image of unknown size"}},
		{name: "this image", size: 500 * mib, machines: mount{id: 1, free: 3 << 30}, content: mount{id: 1, free: 3 << 30}, want: check.OK},
		{name: "this image, too little", size: 500 * mib, machines: mount{id: 1, free: 2 << 30}, content: mount{id: 1, free: 2 << 30}, want: check.Error, parts: []string{"2.0 GiB free, 3.0 GiB are needed for this image"}},
		{name: "two file systems", size: 500 * mib, machines: mount{id: 1, free: 3 << 30}, content: mount{id: 2, free: 600 * mib}, want: check.OK},
		{name: "content too small", size: 500 * mib, machines: mount{id: 1, free: 3 << 30}, content: mount{id: 2, free: 400 * mib}, want: check.Error, parts: []string{paths.Content, "0.4 GiB free, 0.5 GiB"}},
		{name: "built", size: 0, machines: mount{id: 1, free: 2 << 30}, content: mount{id: 1, free: 2 << 30}, want: check.OK},
		{
			name: "a retry has the blobs", size: 2 * mib, machines: mount{id: 1, free: 1<<30 + 7*mib}, content: mount{id: 1, free: 1<<30 + 7*mib},
			files: map[string]string{paths.Content + "/blobs/sha256/a": strings.Repeat("x", 2*mib)}, want: check.OK,
		},
		{name: "the first try has not", size: 2 * mib, machines: mount{id: 1, free: 1<<30 + 7*mib}, content: mount{id: 1, free: 1<<30 + 7*mib}, want: check.Error},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := map[string]string{paths.Machines + "/": "", paths.Content + "/": ""}
			for name, content := range test.files {
				files[name] = content
			}
			h := made(t, files, nil, map[string]mount{paths.Machines: test.machines, paths.Content: test.content})
			expect(t, []check.Result{h.DiskSpace(h.ForImage(test.size))}, test.want, test.parts...)
		})
	}
}
