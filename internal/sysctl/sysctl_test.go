package sysctl

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name string
		text string
		want []Setting
	}{
		{name: "empty"},
		{name: "comments", text: "# a = 1\n; b = 2\n\n   \n"},
		{name: "blanks", text: "  kernel.panic =  10 \nvm.x=1", want: []Setting{{"kernel.panic", "10"}, {"vm.x", "1"}}},
		{name: "slashes", text: "net/ipv4/conf/eth0.7/forwarding = 1\n", want: []Setting{{"net.ipv4.conf.eth0/7.forwarding", "1"}}},
		{name: "errors ignored", text: "-kernel.panic = 1\n", want: []Setting{{"kernel.panic", "1"}}},
		{name: "patterns and exclusions", text: "net.ipv4.conf.*.rp_filter = 2\n-net.ipv4.conf.all.rp_filter\n"},
		{name: "value with blanks", text: "net.ipv4.tcp_rmem = 1 2 3\n", want: []Setting{{"net.ipv4.tcp_rmem", "1 2 3"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, Parse([]byte(test.text))); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadWrite(t *testing.T) {
	root := t.TempDir()
	const key = "net.ipv4.conf.eth0/7.forwarding"
	if got, want := Path(root, key), root+"/proc/sys/net/ipv4/conf/eth0.7/forwarding"; got != want {
		t.Fatalf("Path = %q, want %q", got, want)
	}
	if err := Write(root, key, "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Write of an absent key = %v, want not exist", err)
	}
	if err := os.MkdirAll(filepath.Dir(Path(root, key)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(Path(root, key), []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(root, key, "1"); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(root, key); got != "1" || err != nil {
		t.Errorf("Read = %q, %v, want 1", got, err)
	}
}

func TestOverrides(t *testing.T) {
	ours := []Setting{{"kernel.panic", "10"}, {"vm.x", "1"}}
	for _, test := range []struct {
		name  string
		files map[string]string
		want  []Override
	}{
		{name: "none"},
		{name: "earlier", files: map[string]string{"/etc/sysctl.d/10-a.conf": "vm.x=2"}},
		{name: "later, the same", files: map[string]string{"/etc/sysctl.d/99-z.conf": "vm.x=1"}},
		{
			name: "later, in any folder", files: map[string]string{"/usr/lib/sysctl.d/99-z.conf": "vm.x=2"},
			want: []Override{{"/usr/lib/sysctl.d/99-z.conf", Setting{"vm.x", "2"}}},
		},
		{
			name:  "hidden by a file of that name",
			files: map[string]string{"/usr/lib/sysctl.d/99-z.conf": "vm.x=2", "/etc/sysctl.d/99-z.conf": ""},
		},
		{
			name:  "the last counts",
			files: map[string]string{"/etc/sysctl.d/99-y.conf": "vm.x=2\nkernel.panic=0", "/run/sysctl.d/99-z.conf": "vm.x=1"},
			want:  []Override{{"/etc/sysctl.d/99-y.conf", Setting{"kernel.panic", "0"}}},
		},
		{name: "not a .conf", files: map[string]string{"/etc/sysctl.d/99-z": "vm.x=2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			for path, content := range test.files {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := Overrides(root, "/etc/sysctl.d/99-kubernetes.conf", ours)
			if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
				t.Errorf("overrides: %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestConfigured(t *testing.T) {
	const all, eth = "net.ipv4.conf.all.rp_filter", "net.ipv4.conf.eth0/7.rp_filter"
	for _, test := range []struct {
		name  string
		files map[string]string
		want  map[string]string
	}{
		{name: "nothing", want: map[string]string{}},
		{name: "by name", files: map[string]string{"/etc/sysctl.d/10-a.conf": all + "=2"}, want: map[string]string{all: "2"}},
		{
			name:  "the last file counts",
			files: map[string]string{"/usr/lib/sysctl.d/50-a.conf": all + "=2", "/etc/sysctl.d/10-a.conf": all + "=1"},
			want:  map[string]string{all: "2"},
		},
		{
			name:  "a pattern",
			files: map[string]string{"/etc/sysctl.d/10-a.conf": "net.ipv4.conf.*.rp_filter = 2"},
			want:  map[string]string{all: "2", eth: "2"},
		},
		{
			name:  "a name wins over a later pattern, an exclusion over both places",
			files: map[string]string{"/etc/sysctl.d/10-a.conf": all + "=1\n-net.ipv4.conf.eth0/7.rp_filter\n", "/etc/sysctl.d/20-a.conf": "net/ipv4/conf/*/rp_filter = 2"},
			want:  map[string]string{all: "1"},
		},
		{name: "another key", files: map[string]string{"/etc/sysctl.d/10-a.conf": "-kernel.panic = 1"}, want: map[string]string{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			for path, content := range test.files {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := Configured(root, []string{all, eth})
			if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
				t.Errorf("configured: %v (-want +got):\n%s", err, diff)
			}
		})
	}
}
