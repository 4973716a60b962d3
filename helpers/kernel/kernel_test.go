package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/before"
	"unbounded/internal/exit"
	"unbounded/internal/journal"
	"unbounded/internal/stage"
)

// host is a root whose kernel has overlay and br_netfilter built in and no value that we want.
func host(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{
		"/proc/sys/kernel/random/boot_id":              "boot-1\n",
		"/proc/sys/kernel/osrelease":                   "6.1.0-test\n",
		"/proc/filesystems":                            "nodev\tsysfs\nnodev\toverlay\n\text4\n",
		"/proc/sys/net/ipv4/conf/default/forwarding":   "0\n",
		"/proc/sys/net/ipv4/conf/eth0.7/forwarding":    "1\n",
		"/proc/sys/net/ipv4/conf/all/forwarding":       "0\n",
		"/proc/sys/net/ipv4/conf/all/accept_redirects": "1\n",
	}
	for _, s := range settings() {
		files["/proc/sys/"+strings.ReplaceAll(s.Key, ".", "/")] = "7\n"
	}
	for path, content := range files {
		write(t, root, path, content)
	}
	return root
}

func write(t *testing.T, root, path, content string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func env(root string, log *bytes.Buffer) *stage.Env {
	return &stage.Env{Root: root, Log: journal.To(log)}
}

func none(context.Context, string) error { return errors.New("modprobe was run") }

// snapshot is every file below root with its content and mtime.
func snapshot(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			files[path] = info.ModTime().String() + "\n" + string(data)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestEnsureTwice(t *testing.T) {
	root := host(t)
	var log bytes.Buffer
	if err := ensure(t.Context(), env(root, &log), none); err != nil {
		t.Fatal(err)
	}
	for _, s := range settings() {
		if got, err := read(root, s.Key); err != nil || got != s.Value {
			t.Errorf("%s = %q, %v, want %q", s.Key, got, err, s.Value)
		}
	}
	image, err := before.Load(root, concern)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv4.conf.eth0/7.forwarding", "net.ipv4.conf.all.accept_redirects"} {
		if !image.Has(before.Sysctl, key) {
			t.Errorf("no before-image of %s", key)
		}
	}

	first := snapshot(t, root)
	log.Reset()
	if err := ensure(t.Context(), env(root, &log), none); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, snapshot(t, root)); diff != "" || log.Len() > 0 {
		t.Errorf("the second run said %q and changed (-first +second):\n%s", &log, diff)
	}
}

func TestEnsureRepairsDrift(t *testing.T) {
	root := host(t)
	var log bytes.Buffer
	if err := ensure(t.Context(), env(root, &log), none); err != nil {
		t.Fatal(err)
	}
	want := snapshot(t, filepath.Join(root, "etc"))
	write(t, root, sysctlFile, "kernel.panic = 0\n")
	write(t, root, "/proc/sys/kernel/panic", "0\n")
	if err := os.Remove(filepath.Join(root, modulesFile)); err != nil {
		t.Fatal(err)
	}
	if err := ensure(t.Context(), env(root, &log), none); err != nil {
		t.Fatal(err)
	}
	content := func(files map[string]string) map[string]string {
		for path := range files {
			_, files[path], _ = strings.Cut(files[path], "\n")
		}
		return files
	}
	if diff := cmp.Diff(content(want), content(snapshot(t, filepath.Join(root, "etc")))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if got, err := read(root, "kernel.panic"); err != nil || got != "10" {
		t.Errorf("kernel.panic = %q, %v, want 10", got, err)
	}
}

func TestEnsureErrors(t *testing.T) {
	const modules = "/lib/modules/6.1.0-test/modules.dep"
	for _, test := range []struct {
		name   string
		lacks  string            // of the host
		has    map[string]string // files of it
		load   error
		want   string
		status exit.Status
	}{
		{
			name: "no such parameter", lacks: "/proc/sys/kernel/panic",
			want: "kernel.panic does not exist", status: exit.Refused,
		},
		{
			name: "no such module", lacks: "/proc/sys/net/bridge",
			want: "no module br_netfilter", status: exit.Refused,
		},
		{
			name: "module fails to load", lacks: "/proc/sys/net/bridge", load: errors.New("key was rejected"),
			has:  map[string]string{modules: "kernel/net/bridge/br_netfilter.ko.xz: kernel/net/bridge/bridge.ko.xz\n"},
			want: "load module br_netfilter: key was rejected", status: exit.Failed,
		},
		{
			name: "module changes nothing",
			has:  map[string]string{"/proc/filesystems": "\text4\n", modules: "kernel/fs/overlayfs/overlay.ko:\n"},
			want: "still missing", status: exit.Failed,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := host(t)
			if test.lacks != "" {
				if err := os.RemoveAll(filepath.Join(root, test.lacks)); err != nil {
					t.Fatal(err)
				}
			}
			for path, content := range test.has {
				write(t, root, path, content)
			}
			var log bytes.Buffer
			err := ensure(t.Context(), env(root, &log), func(context.Context, string) error { return test.load })
			if err == nil || !strings.Contains(err.Error(), test.want) || exit.Of(err) != test.status {
				t.Errorf("err = %v, status %d, want %q, status %d", err, exit.Of(err), test.want, test.status)
			}
		})
	}
}

func TestWarnOverrides(t *testing.T) {
	root := host(t)
	write(t, root, "/etc/sysctl.d/10-early.conf", "kernel.panic = 1\n")
	write(t, root, "/usr/lib/sysctl.d/99-z.conf", "kernel.panic = 2\n") // hidden by the next
	write(t, root, "/etc/sysctl.d/99-z.conf", "net/ipv4/ip_forward=0\nkernel.panic = 10\nnet.ipv4.conf.*.rp_filter = 2\n")
	var log bytes.Buffer
	if err := ensure(t.Context(), env(root, &log), none); err != nil {
		t.Fatal(err)
	}
	var warnings []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "sets") {
			warnings = append(warnings, line)
		}
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "/etc/sysctl.d/99-z.conf sets net.ipv4.ip_forward = 0") {
		t.Errorf("warnings = %q, want one that names the file and ip_forward", warnings)
	}
}

func TestPlan(t *testing.T) {
	have := map[string]string{}
	for _, s := range settings() {
		have[s.Key] = s.Value
	}
	have["kernel.panic"] = "0"
	got, err := plan(settings(), func(key string) (string, error) { return have[key], nil })
	want := []before.Change{{Kind: before.Sysctl, Object: "kernel.panic", Now: before.Text("0"), Want: before.Text("10")}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("plan: %v (-want +got):\n%s", err, diff)
	}
}
