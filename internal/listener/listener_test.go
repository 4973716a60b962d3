package listener

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

func line(address, state, inode string) string {
	return fmt.Sprintf("   0: %s 00000000:0000 %s 00000000:00000000 00:00000000 00000000     0        0 %s 1 0 100\n", address, state, inode)
}

// fakeProc writes files (contents) and links below a new folder.
func fakeProc(t *testing.T, files, links map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, content := range files {
		put(t, filepath.Join(dir, path))
		if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for path, target := range links {
		put(t, filepath.Join(dir, path))
		if err := os.Symlink(target, filepath.Join(dir, path)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func put(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestOn(t *testing.T) {
	nginx := map[string]string{"812/fd/3": "socket:[77]", "812/fd/4": "socket:[77]", "812/fd/0": "/dev/null", "812/exe": "/usr/bin/nginx (deleted)"}
	for _, test := range []struct {
		name  string
		files map[string]string
		links map[string]string
		want  []Socket
	}{
		{name: "nobody", files: map[string]string{"net/tcp": heading, "net/tcp6": heading}},
		{
			name:  "another port, and a connection on ours",
			files: map[string]string{"net/tcp": heading + line("0100007F:2811", "0A", "77") + line("0100007F:280A", "01", "78")},
		},
		{
			name: "IPv4, replaced executable, a descriptor twice, no IPv6 in the kernel",
			files: map[string]string{
				"net/tcp":    heading + line("0100007F:280A", "0A", "77"),
				"812/cgroup": "0::/system.slice/nginx.service\n",
			},
			links: nginx,
			want: []Socket{{
				netip.MustParseAddrPort("127.0.0.1:10250"),
				[]Owner{{812, "/usr/bin/nginx", "nginx.service"}},
			}},
		},
		{
			name: "IPv6 wildcard, two owners, one in a machine",
			files: map[string]string{
				"net/tcp": heading, "net/tcp6": heading + line("00000000000000000000000000000000:280A", "0A", "77"),
				"90/cgroup":  "0::/machine.slice/systemd-nspawn@kube1.service/payload/system.slice/kubelet.service\n",
				"812/cgroup": "3:cpu:/x.service\n1:name=systemd:/user.slice/session-1.scope\n0::/\n",
			},
			links: map[string]string{"812/fd/3": "socket:[77]", "90/fd/9": "socket:[77]", "90/exe": "/usr/local/bin/kubelet"},
			want: []Socket{{
				netip.MustParseAddrPort("[::]:10250"),
				[]Owner{{812, "", "session-1.scope"}, {90, "/usr/local/bin/kubelet", "systemd-nspawn@kube1.service/kubelet.service"}},
			}},
		},
		{
			name:  "an owner that cannot be found",
			files: map[string]string{"net/tcp": heading + line("00000000:280A", "0A", "77")},
			want:  []Socket{{Address: netip.MustParseAddrPort("0.0.0.0:10250")}},
		},
		{
			name: "both families",
			files: map[string]string{
				"net/tcp":  heading + line("0200007F:280A", "0A", "5"),
				"net/tcp6": heading + line("00000000000000000000000001000000:280A", "0A", "6"),
			},
			want: []Socket{{Address: netip.MustParseAddrPort("127.0.0.2:10250")}, {Address: netip.MustParseAddrPort("[::1]:10250")}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := On(fakeProc(t, test.files, test.links), 10250)
			if err != nil {
				t.Fatal(err)
			}
			order := cmpopts.SortSlices(func(a, b Owner) bool { return a.PID > b.PID })
			if diff := cmp.Diff(test.want, got, order, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Errorf("On (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOnUnreadable(t *testing.T) {
	for name, table := range map[string]string{"no table": "", "bad address": heading + line("xyz:280A", "0A", "1")} {
		files := map[string]string{"other": ""}
		if table != "" {
			files["net/tcp"] = table
		}
		if got, err := On(fakeProc(t, files, nil), 10250); err == nil {
			t.Errorf("%s: On = %v, want an error", name, got)
		}
	}
}

// TestOnReal looks at this very process through the kernel's own tables.
func TestOnReal(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want := netip.MustParseAddrPort(l.Addr().String())
	got, err := On("/proc", want.Port())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Address != want || len(got[0].Owners) != 1 || got[0].Owners[0].PID != os.Getpid() {
		t.Errorf("On = %v, want %v of pid %d", got, want, os.Getpid())
	}
}

func TestInside(t *testing.T) {
	tree, other := t.TempDir(), t.TempDir()
	binary := filepath.Join(tree, "usr/local/bin/kubelet")
	for _, path := range []string{binary, filepath.Join(other, "usr/local/bin/kubelet"), filepath.Join(tree, "usr/bin/nginx")} {
		put(t, path)
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// In a real /proc the links exe and root lead somewhere whatever their text says; a made-up
	// one can only be read as text, so exe names the file by its full path here.
	for _, test := range []struct {
		name       string
		root, exe  string
		executable string
		want       bool
	}{
		{"ours", tree, binary, "/usr/local/bin/kubelet", true},
		{"ours, replaced meanwhile", tree, "/usr/local/bin/kubelet (deleted)", "/usr/local/bin/kubelet", true},
		{"root elsewhere", other, binary, "/usr/local/bin/kubelet", false},
		{"another program of the tree", tree, filepath.Join(tree, "usr/bin/nginx"), "/usr/bin/nginx", false},
		{"a mount over the tree's file", tree, filepath.Join(other, "usr/local/bin/kubelet"), "/usr/local/bin/kubelet", false},
		{"unreadable root", filepath.Join(tree, "absent"), binary, "/usr/local/bin/kubelet", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			proc := fakeProc(t, nil, map[string]string{"7/root": test.root, "7/exe": test.exe})
			owner := Owner{PID: 7, Executable: test.executable}
			if got := owner.Inside(proc, tree, "kubelet"); got != test.want {
				t.Errorf("Inside = %v, want %v", got, test.want)
			}
		})
	}
}

func TestOwnerString(t *testing.T) {
	got := Owner{PID: 4}.String()
	if want := "pid 4 (executable unreadable, no unit)"; got != want || strings.Contains(got, "()") {
		t.Errorf("String = %q, want %q", got, want)
	}
}
