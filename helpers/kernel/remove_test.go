package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/before"
	"unbounded/internal/record"
)

// contents is every file below root but mtimes, the before-images and the boot.
func contents(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for path, file := range snapshot(t, root) {
		path = strings.TrimPrefix(path, root)
		if !strings.HasPrefix(path, "/var/") && !strings.HasSuffix(path, "/boot_id") {
			_, files[path], _ = strings.Cut(file, "\n")
		}
	}
	return files
}

const image = "/var/lib/unbounded/agent/before/kernel.json"

// Whatever happens between install and reset: what was is again, and what somebody else changed since stays.
func TestRemove(t *testing.T) {
	const (
		forward   = "/proc/sys/net/ipv4/ip_forward"
		eth       = "/proc/sys/net/ipv4/conf/eth0.7/forwarding"
		redirects = "/proc/sys/net/ipv4/conf/all/accept_redirects"
	)
	set := func(path, content string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			t.Helper()
			write(t, root, path, content)
		}
	}
	all := func(steps ...func(*testing.T, string)) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			t.Helper()
			for _, step := range steps {
				step(t, root)
			}
		}
	}
	reboot := set("/proc/sys/kernel/random/boot_id", "boot-2\n")
	for _, test := range []struct {
		name    string
		before  func(t *testing.T, root string)
		between func(t *testing.T, root string)
		differs map[string]string // from what was before
		says    []string
	}{
		{name: "at once"},
		{name: "after a reboot", between: reboot},
		{
			name:   "after a reboot, with a value in sysctl.d",
			before: set("/etc/sysctl.d/50-host.conf", "kernel.panic = 30\n-kernel.panic_on_oops\nkernel.panic_on* = 4\nvm.panic_on_oom = 5\n"), between: reboot,
			differs: map[string]string{"/proc/sys/kernel/panic": "30\n", "/proc/sys/vm/panic_on_oom": "5\n"},
		},
		{
			name:    "after a reboot, now forwarding by sysctl.d",
			before:  all(set(forward, "0\n"), set(eth, "0\n")),
			between: all(reboot, set("/etc/sysctl.d/50-host.conf", "net.ipv4.ip_forward = 1\n"), set(eth, "1\n"), set(redirects, "0\n")),
			differs: map[string]string{
				"/etc/sysctl.d/50-host.conf": "net.ipv4.ip_forward = 1\n", forward: "1\n", eth: "1\n", redirects: "0\n",
			},
		},
		{
			name: "a value was changed since", between: set("/proc/sys/kernel/panic", "3\n"),
			differs: map[string]string{"/proc/sys/kernel/panic": "3\n"}, says: []string{"kernel.panic was changed by somebody else"},
		},
		{
			name: "a value was put back since", between: set("/proc/sys/kernel/panic", "7\n"),
		},
		{
			name: "the file was changed since", between: set(sysctlFile, "mine = 1\n"),
			differs: map[string]string{sysctlFile: "mine = 1\n"}, says: []string{sysctlFile + " was changed by somebody else"},
		},
		{
			name:   "the file was there before",
			before: set(sysctlFile, "theirs = 1\n"),
		},
		{
			name: "after a reboot, which has not read the file that was there before",
			before: all(set(sysctlFile, "net.ipv4.conf.all.log_martians = 1\nno.such.key = 1\nnet.ipv4.conf.*.theirs = 1\n"),
				set("/proc/sys/net/ipv4/conf/all/log_martians", "1\n")),
			between: all(reboot, set("/proc/sys/net/ipv4/conf/all/log_martians", "0\n")),
		},
		{
			name:    "not rebooted, and a value of that file was changed since",
			before:  all(set(sysctlFile, "net.ipv4.conf.all.log_martians = 1\n"), set("/proc/sys/net/ipv4/conf/all/log_martians", "1\n")),
			between: set("/proc/sys/net/ipv4/conf/all/log_martians", "0\n"),
			differs: map[string]string{"/proc/sys/net/ipv4/conf/all/log_martians": "0\n"},
		},
		{
			name: "a link is gone since",
			between: func(t *testing.T, root string) {
				t.Helper()
				if err := os.RemoveAll(filepath.Join(root, filepath.Dir(eth))); err != nil {
					t.Fatal(err)
				}
			},
			differs: map[string]string{eth: ""},
		},
		{
			name: "killed when ip_forward was put back", before: set(forward, "0\n"),
			between: func(t *testing.T, root string) {
				t.Helper()
				image, err := before.Load(root, concern)
				if err != nil {
					t.Fatal(err)
				}
				targets, err := targets(root, image)
				if err != nil {
					t.Fatal(err)
				}
				restore := image.Entries()
				for i, e := range restore {
					if e.Object == forwarding {
						restore[0], restore[i] = restore[i], restore[0]
					}
				}
				if err := keepDragged(image, restore, targets); err != nil {
					t.Fatal(err)
				}
				write(t, root, forward, "0\n")
				write(t, root, eth, "0\n") // by the kernel: it was 1
				write(t, root, redirects, "1\n")
			},
		},
		{
			name: "killed before anything was changed",
			between: func(t *testing.T, root string) {
				t.Helper()
				saved, err := os.ReadFile(filepath.Join(root, image))
				if err != nil {
					t.Fatal(err)
				}
				if err := remove(t.Context(), env(root, new(bytes.Buffer))); err != nil {
					t.Fatal(err)
				}
				write(t, root, image, string(saved)) // which also is: killed before the image was discarded
			},
		},
		{
			name: "killed with the files put back, and installed again",
			between: func(t *testing.T, root string) {
				t.Helper()
				image, err := before.Load(root, concern)
				if err != nil {
					t.Fatal(err)
				}
				if err := restoreFiles(env(root, new(bytes.Buffer)), image); err != nil {
					t.Fatal(err)
				}
				if err := ensure(t.Context(), env(root, new(bytes.Buffer)), none); err != nil {
					t.Fatal(err)
				}
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := host(t)
			if test.before != nil {
				test.before(t, root)
			}
			want := contents(t, root)
			var log bytes.Buffer
			if err := ensure(t.Context(), env(root, &log), none); err != nil {
				t.Fatal(err)
			}
			if test.between != nil {
				test.between(t, root)
			}
			log.Reset()
			if err := remove(t.Context(), env(root, &log)); err != nil {
				t.Fatal(err)
			}
			for path, content := range test.differs {
				want[path] = content
				if content == "" {
					delete(want, path)
				}
			}
			if diff := cmp.Diff(want, contents(t, root)); diff != "" {
				t.Errorf("host (-before +after):\n%s", diff)
			}
			for _, says := range test.says {
				if !strings.Contains(log.String(), says) {
					t.Errorf("log has no %q:\n%s", says, &log)
				}
			}
			if n := strings.Count(log.String(), "somebody else"); n != len(test.says) {
				t.Errorf("%d things were left, want %d:\n%s", n, len(test.says), &log)
			}

			first := snapshot(t, root)
			log.Reset()
			if err := remove(t.Context(), env(root, &log)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(first, snapshot(t, root)); diff != "" || strings.Contains(log.String(), "removed") {
				t.Errorf("the second run said %q and changed:\n%s", &log, diff)
			}
		})
	}
}

// Without a before-image only what shows whose it is goes.
func TestRemoveUnnoted(t *testing.T) {
	agents := ""
	for _, s := range settings() {
		agents += s.Key + "=" + s.Value + "\n"
	}
	for _, test := range []struct {
		name, content string
		record        record.Record
		stays         bool
	}{
		{name: "the public agent's", content: agents},
		{name: "of a host that cannot be named", content: agents, record: record.Record{Prefix: "/opt/x", MachineName: "legacy-reset"}},
		{name: "the public agent's, on a host of ours", content: agents, record: record.Record{Prefix: "/opt/x"}, stays: true},
		{name: "ours", content: sysctlContent(), record: record.Record{Prefix: "/opt/x"}},
		{name: "with a line of the operator", content: agents + "vm.swappiness=1\n", stays: true},
		{name: "with a value of the operator", content: strings.Replace(agents, "kernel.panic=10", "kernel.panic=1", 1), stays: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := host(t)
			write(t, root, sysctlFile, test.content)
			var log bytes.Buffer
			e := env(root, &log)
			e.Record = test.record
			if err := remove(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(root, sysctlFile)); (err == nil) != test.stays || log.Len() == 0 {
				t.Errorf("stat = %v, want it there: %v; log: %q", err, test.stays, &log)
			}
		})
	}
}
