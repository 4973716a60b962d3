//go:build host

package host_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"unbounded/tests/host"
)

func TestMain(m *testing.M) {
	if os.Getenv(toBeKilled) != "" {
		os.Exit(victim())
	}
	os.Exit(host.Main(m))
}

// The versions are those that the product has to work with.
var releases = map[string]string{"bookworm": "systemd 252 ", "trixie": "systemd 257 "}

func TestBoot(t *testing.T) {
	for release, version := range releases {
		t.Run(release, func(t *testing.T) {
			h := host.Boot(t, host.Options{Release: release, Bare: true})
			if got := h.MustRun(t, "systemctl --version"); !strings.HasPrefix(got, version) {
				t.Errorf("systemctl --version = %q, want %q first", got, version)
			}
			if got := strings.TrimSpace(h.Run(t, "systemctl is-system-running").Out); got != "running" {
				t.Errorf("is-system-running = %q, want running\n%s", got, h.MustRun(t, "systemctl --failed"))
			}
			if got := h.MustRun(t, "ip -o route show default"); !strings.Contains(got, host.OutsideIP) {
				t.Errorf("default route = %q, want one by %s", got, host.OutsideIP)
			}
			if got := strings.TrimSpace(h.MustRun(t, "hostname")); got != "node-1" {
				t.Errorf("hostname = %q, want node-1", got)
			}
			h.PowerOff(t)
			if got := h.Leader(); got != 0 {
				t.Errorf("Leader() = %d after the power off, want 0", got)
			}
		})
	}
}

// A machine inside the host: what the whole product is about.
func TestMachine(t *testing.T) {
	tree, err := host.Artefact("node-tree")
	if err != nil {
		t.Fatal(err)
	}
	for release := range releases {
		t.Run(release, func(t *testing.T) {
			h := host.Boot(t, host.Options{Release: release, Bare: true, Overlay: map[string]host.File{
				"/etc/systemd/nspawn/kube1.nspawn": {Content: `[Exec]
Capability=all
PrivateUsers=no
NotifyReady=yes
[Network]
VirtualEthernet=no
`},
			}})
			began := time.Now()
			copyTree(t, tree, filepath.Join(h.Root, "var/lib/machines/kube1"))
			t.Logf("tree copied in %v", time.Since(began).Round(time.Millisecond))
			h.WriteFile(t, "/var/lib/machines/kube1/etc/machine-id", host.File{Content: strings.Repeat("ab", 16) + "\n"})
			started := h.Run(t, "systemctl start systemd-nspawn@kube1")
			t.Logf("machine started in %v", started.Took.Round(time.Millisecond))
			if got := h.MustRun(t, "machinectl show --property=State kube1"); got != "State=running\n" {
				t.Errorf("machinectl show = %q, want it running", got)
			}
			if got := h.MustRun(t, "systemd-run --machine=kube1 --quiet --pipe --wait ip -o addr show host0"); !strings.Contains(got, host.InsideIP) {
				t.Errorf("the machine's host0 = %q, want the host's", got)
			}
			stopped := h.Run(t, "systemctl stop systemd-nspawn@kube1")
			t.Logf("and stopped in %v", stopped.Took.Round(time.Millisecond))
		})
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "cp", "--archive", from, to).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v: %s", from, err, out)
	}
}

// What is on disk survives each way of going down; what is not, does not.
func TestDown(t *testing.T) {
	h := host.Boot(t, host.Options{Bare: true})
	boot := func() string { return h.MustRun(t, "cat /proc/sys/kernel/random/boot_id /proc/1/stat") }
	ways := []struct {
		name string
		down func()
	}{
		{"reboot", func() { h.Reboot(t) }},
		{"forced reboot", func() { h.Run(t, "systemctl reboot --force --force"); h.WaitReboot(t) }},
		{"power off", func() { h.PowerOff(t); h.On(t) }},
		{"power cut", func() { h.PowerCut(t); h.On(t) }},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			h.WriteFile(t, "/etc/kept", host.File{Content: way.name})
			h.MustRun(t, "touch /run/lost; ip link add lost type bridge; nft add table inet lost")
			before := boot()
			began := time.Now()
			way.down()
			t.Logf("took %v", time.Since(began).Round(10*time.Millisecond))
			if boot() == before {
				t.Error("it is the same boot")
			}
			if got := h.ReadFile(t, "/etc/kept"); got != way.name {
				t.Errorf("/etc/kept = %q, want %q", got, way.name)
			}
			if got := h.MustRun(t, "ls /run; ip link; nft list ruleset"); strings.Contains(got, "lost") {
				t.Errorf("something was kept: %s", got)
			}
			h.MustRun(t, "ip -o addr show host0 | grep -q "+host.InsideIP)
		})
	}
}

// A server of the test is where the host looks for it.
func TestListen(t *testing.T) {
	h := host.Boot(t, host.Options{Bare: true})
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "hello "+r.RemoteAddr)
	})}
	defer server.Close()
	go func() { _ = server.Serve(h.Listen(t, host.OutsideIP+":80")) }()
	h.Await(t, time.Minute, "curl --silent --fail http://"+host.OutsideIP)
	if got := h.MustRun(t, "curl --silent http://"+host.OutsideIP); !strings.HasPrefix(got, "hello "+host.InsideIP) {
		t.Errorf("the server says %q, want it to greet %s", got, host.InsideIP)
	}
}

// The tree sees every kind of change, and none where there is none.
func TestTree(t *testing.T) {
	h := host.Boot(t, host.Options{Bare: true})
	options := host.TreeOptions{Exclude: host.Noise}
	h.MustRun(t, "mkdir /srv/t && cd /srv/t && touch time && echo a >content && touch mode owner attribute && ln -s a link && mkdir gone")
	before := h.Tree(t, options)
	if diff := cmp.Diff(before, h.Tree(t, options)); diff != "" {
		t.Errorf("two looks differ: %s", diff)
	}
	h.MustRun(t, `cd /srv/t && touch time && echo b >content && touch -r mode content && chmod 4755 mode &&
		chown 1:2 owner && ln -sfn b link && rmdir gone && mknod new c 1 3`)
	if err := unix.Setxattr(filepath.Join(h.Root, "/srv/t/attribute"), "user.test", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	after := h.Tree(t, options)
	if before.Hash() == after.Hash() {
		t.Error("the hash is the same after changes")
	}
	for _, name := range []string{"time", "content", "mode", "owner", "attribute", "link", "gone", "new"} {
		path := "/srv/t/" + name
		if before[path] == after[path] {
			t.Errorf("%s has changed, but not in the tree: %s", path, after[path])
		}
		delete(before, path)
		delete(after, path)
	}
	delete(before, "/srv/t")
	delete(after, "/srv/t")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("what was not changed differs: %s", diff)
	}
}

// toBeKilled makes this program a test that is killed while its host runs.
const toBeKilled = "UNBOUNDED_TEST_KILL"

func TestKilled(t *testing.T) {
	killed := exec.CommandContext(t.Context(), "/proc/self/exe")
	killed.Env = append(os.Environ(), toBeKilled+"=1")
	killed.Stderr = os.Stderr
	out, err := killed.StdoutPipe()
	if err == nil {
		err = killed.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatalf("the victim has no host: %v", killed.Wait())
	}
	t.Cleanup(func() { _ = killed.Process.Kill(); _ = killed.Wait() })
	mine := fmt.Sprintf("unbounded-ground.%d.", killed.Process.Pid)
	if len(mentions(t, mine)) == 0 {
		t.Fatalf("nothing on this machine is called %s*, but there is %s", mine, lines.Text())
	}
	_ = killed.Process.Kill()
	_ = killed.Wait()
	for began := time.Now(); ; {
		left := mentions(t, mine)
		if len(left) == 0 {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("still there a minute later: %q", left)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// victim boots a host, says where, and waits to be killed.
func victim() int {
	return host.Program(os.Stderr, func(t host.T) {
		fmt.Println(host.Boot(t, host.Options{}).Dir)
		<-t.Context().Done()
	})
}

// mentions finds what this machine has with names that begin so.
func mentions(t *testing.T, name string) []string {
	t.Helper()
	var left []string
	for _, pattern := range []string{"/var/tmp/unbounded-ground/", "/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		found, err := filepath.Glob(pattern + name + "*")
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range processes {
		line, _ := os.ReadFile(process)
		if strings.Contains(string(line), name) {
			left = append(left, process)
		}
	}
	return left
}
