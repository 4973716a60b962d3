package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/config"
	"unbounded/internal/exit"
	"unbounded/internal/journal"
	"unbounded/internal/kubelet"
	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/internal/resolv"
	"unbounded/internal/restart"
	"unbounded/internal/stage"
)

const (
	slot   = "kube1"
	tokenA = "aaaaaa.cafe0123456789ab"
	tokenB = "bbbbbb.cafe0123456789ab"
	zone   = "example.test/zone"
	pemCA  = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
)

var errKilled = errors.New("killed")

// world is a host with a machine, whose kubelet is played by the test.
type world struct {
	t    *testing.T
	root string
	log  bytes.Buffer

	// kubelet's memory: what it was started with.
	running     bool
	started     *config.Config // from the files as they were
	joinedWith  string         // label of the configuration that it joined with
	stops, step int
	events      func(step int) // what else happens in the world before a step
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, root: memory(t)}
	for name, content := range map[string]string{
		"/proc/sys/kernel/hostname":                      "host-1\n",
		"/etc/resolv.conf":                               "nameserver 10.0.0.1\n",
		paths.Tree(slot) + "/usr/local/bin/kubelet":      "",
		paths.Tree(slot) + "/etc/resolv.conf":            "",
		paths.Tree(slot) + "/usr/lib/systemd/keep-me-on": "",
	} {
		w.write(name, content)
	}
	return w
}

// memory is a folder of the test, in memory if possible: there are thousands of syncs here.
func memory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "node") //nolint:usetesting // t.TempDir is on a disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func (w *world) write(name, content string) {
	w.t.Helper()
	name = paths.At(w.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o600)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) inTree(name string) string { return paths.At(w.root, paths.Tree(slot)+name) }

func (w *world) read(name string) string {
	data, err := os.ReadFile(w.inTree(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.t.Fatal(err)
	}
	return string(data)
}

// configuration is what an attempt was admitted with.
func (w *world) configuration(change func(document map[string]any)) *config.Config {
	w.t.Helper()
	document := map[string]any{
		"MachineName": "node-1",
		"Cluster":     map[string]any{"CaCertBase64": base64(pemCA), "ClusterDNS": "10.0.0.10", "Version": "1.34.0"},
		"Kubelet": map[string]any{
			"ApiServer": "https://api.example.test:6443",
			"Auth":      map[string]any{"BootstrapToken": tokenA},
			"Labels":    map[string]any{zone: "a"},
		},
		"CRI": map[string]any{"Containerd": map[string]any{}},
	}
	if change != nil {
		change(document)
	}
	data, err := json.Marshal(document)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := config.Parse(data, config.Host{Hostname: "host-1"})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func base64(text string) string {
	data, _ := json.Marshal([]byte(text)) // bytes always marshal
	return strings.Trim(string(data), `"`)
}

func label(value, token string) func(map[string]any) {
	return func(document map[string]any) {
		k := document["Kubelet"].(map[string]any)
		k["Labels"] = map[string]any{zone: value}
		k["Auth"] = map[string]any{"BootstrapToken": token}
	}
}

// node runs the stage; it is killed before its step number kill, if that is not negative.
func (w *world) node(c *config.Config, kill int) error {
	w.t.Helper()
	w.step = 0
	env := &stage.Env{
		Root: w.root, Slot: slot, Config: c, Log: journal.To(&w.log),
		Record: record.Record{InstallID: "00112233445566778899aabbccddeeff"},
	}
	return run(w.t.Context(), &node{
		Env: env,
		stop: func(context.Context) error {
			if w.running {
				w.stops++
			}
			w.running = false
			return nil
		},
		step: func(do func() error) error {
			if w.events != nil {
				w.events(w.step)
			}
			if w.step == kill {
				return errKilled
			}
			w.step++
			return do()
		},
	})
}

// start starts kubelet as systemd would: not without built.json.
func (w *world) start() {
	if _, err := os.Stat(w.inTree(paths.Built)); err != nil || w.running {
		return
	}
	w.running = true
	w.started = w.fromFiles()
}

// fromFiles is what kubelet reads of its files.
func (w *world) fromFiles() *config.Config {
	_, arguments, _ := strings.Cut(w.read("/etc/systemd/system/kubelet.service.d/20-node-config.conf"), "--node-labels="+zone+"=")
	value, _, _ := strings.Cut(strings.Trim(arguments, "\"\n"), " ")
	return &config.Config{Labels: map[string]string{zone: value}}
}

// join gives a running kubelet its certificate. It happens once.
func (w *world) join() {
	if !w.running || w.joinedWith != "" {
		return
	}
	w.joinedWith = w.started.Labels[zone]
	const current = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	w.write(paths.Tree(slot)+"/var/lib/kubelet/pki/kubelet-client-1.pem", "PEM")
	if err := os.Symlink("/var/lib/kubelet/pki/kubelet-client-1.pem", w.inTree(current)); err != nil {
		w.t.Fatal(err)
	}
	w.write(paths.Tree(slot)+paths.Kubeconfig, "users:\n- user:\n    client-certificate: "+current+"\n")
}

// machine does what the machine stage does about kubelet, and claims the mark of containerd.
func (w *world) machine() (restarted []string) {
	w.t.Helper()
	for _, service := range []string{"containerd", kubelet.Service} {
		mark := restart.Of(w.root, slot, service)
		claimed, err := mark.Claim()
		if err != nil {
			w.t.Fatal(err)
		}
		if claimed {
			restarted = append(restarted, service)
			if service == kubelet.Service {
				w.running = false
			}
			if err := mark.Done(); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	w.start()
	return restarted
}

// built is the label in built.json.
func (w *world) built() string {
	w.t.Helper()
	var file config.File
	if err := json.Unmarshal([]byte(w.read(paths.Built)), &file); err != nil {
		w.t.Fatalf("built.json: %v", err)
	}
	return file.Kubelet.Labels[zone]
}

// snapshot is every file with its content, mode and times.
func (w *world) snapshot() map[string]string {
	w.t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(w.root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		files[path] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return files
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func TestTwiceWritesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.configuration(nil)
	w.must(w.node(c, -1))
	w.machine()
	before := w.snapshot()
	w.must(w.node(c, -1))
	if diff := cmp.Diff(before, w.snapshot()); diff != "" || w.stops > 0 {
		t.Errorf("not joined (-first +second), %d stops:\n%s", w.stops, diff)
	}
	w.join()
	before = w.snapshot()
	w.must(w.node(c, -1))
	if diff := cmp.Diff(before, w.snapshot()); diff != "" || w.stops > 0 {
		t.Errorf("joined (-first +second), %d stops:\n%s", w.stops, diff)
	}
}

func TestChangesOfAJoinedNode(t *testing.T) {
	t.Parallel()
	tokenSource := func(document map[string]any) { label("a", tokenB)(document) }
	for _, test := range []struct {
		name      string
		change    func(map[string]any)
		spoil     func(w *world)
		restarted []string
		status    exit.Status
	}{
		{name: "nothing"},
		{name: "label", change: label("b", tokenA), restarted: []string{"kubelet"}},
		{name: "token", change: tokenSource},
		{name: "kubelet setting", change: func(d map[string]any) {
			d["Kubelet"].(map[string]any)["Configuration"] = map[string]any{"maxPods": 7}
		}, restarted: []string{"kubelet"}},
		{name: "sandbox image", change: func(d map[string]any) {
			d["CRI"].(map[string]any)["Containerd"].(map[string]any)["SandboxImage"] = "example.test/pause:1"
		}, restarted: []string{"containerd"}},
		{name: "mirror", change: func(d map[string]any) {
			d["CRI"].(map[string]any)["Containerd"].(map[string]any)["RegistryMirrors"] = []any{map[string]any{"Host": "docker.io", "Mirror": "https://m.test"}}
		}},
		{name: "lost settings of the machine", spoil: func(w *world) { w.must(os.Remove(paths.At(w.root, paths.Nspawn(slot)))) }},
		{name: "lost drop-in", spoil: func(w *world) { w.must(os.RemoveAll(paths.At(w.root, paths.DropIn(slot)))) }},
		{name: "lost mask", spoil: func(w *world) { w.must(os.Remove(w.inTree("/etc/systemd/system/nftables.service"))) }},
		{name: "lost unit", spoil: func(w *world) { w.must(os.Remove(w.inTree("/etc/systemd/system/containerd.service"))) }, restarted: []string{"containerd"}},
		{name: "wrong mode", spoil: func(w *world) { w.must(os.Chmod(w.inTree(paths.KubeletConfig), 0o600)) }},
		{name: "lost built.json", spoil: func(w *world) { w.must(os.Remove(w.inTree(paths.Built))) }},
		{name: "damaged built.json", spoil: func(w *world) { w.must(os.Truncate(w.inTree(paths.Built), 40)) }},
		{name: "another name", change: func(d map[string]any) { d["NodeName"] = "node-2" }, status: exit.Refused},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.must(w.node(w.configuration(nil), -1))
			w.machine()
			w.join()
			built := w.read(paths.Built)
			w.write(paths.Applied(slot), built) // as the join stage does
			if test.spoil != nil {
				test.spoil(w)
			}
			c := w.configuration(test.change)
			err := w.node(c, -1)
			if exit.Of(err) != test.status {
				t.Fatalf("node = %v, want status %d", err, test.status)
			}
			if w.read(paths.Built) != built || w.stops > 0 {
				t.Errorf("built.json is another one, or kubelet was stopped %d times", w.stops)
			}
			if err != nil {
				return
			}
			if diff := cmp.Diff(test.restarted, w.machine()); diff != "" {
				t.Errorf("restarted (-want +have):\n%s", diff)
			}
			before := w.snapshot()
			w.must(w.node(c, -1))
			if diff := cmp.Diff(before, w.snapshot()); diff != "" {
				t.Errorf("a second run (-before +after):\n%s", diff)
			}
			if strings.Contains(w.log.String(), "cafe0123456789ab") {
				t.Error("the log has a token")
			}
		})
	}
}

func TestMirrorIsRemovedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mirrors := func(hosts ...string) *config.Config {
		return w.configuration(func(d map[string]any) {
			var list []any
			for _, host := range hosts {
				list = append(list, map[string]any{"Host": host, "Mirror": "https://m.test"})
			}
			d["CRI"].(map[string]any)["Containerd"].(map[string]any)["RegistryMirrors"] = list
		})
	}
	foreign := "/etc/containerd/certs.d/ghcr.io/hosts.toml"
	w.write(paths.Tree(slot)+foreign, "server = \"https://ghcr.io\"\n")
	w.must(w.node(mirrors("docker.io", "quay.io"), -1))
	w.must(w.node(mirrors("quay.io"), -1))
	if w.read("/etc/containerd/certs.d/docker.io/hosts.toml") != "" {
		t.Error("the mirror is still there")
	}
	if w.read("/etc/containerd/certs.d/quay.io/hosts.toml") == "" || w.read(foreign) == "" {
		t.Error("more than the mirror is gone")
	}
}

// TestEveryCrash kills the stage before each of its steps, lets kubelet join at each moment
// before that, retries with the same or another configuration, and checks what the design
// promises: what join promotes is what the running node was built from, and a kubelet that runs
// has the files of its configuration.
func TestEveryCrash(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"nothing", "built", "running"} {
		for _, retry := range []string{"a", "b", "c"} {
			t.Run(from+", then "+retry, func(t *testing.T) {
				t.Parallel()
				for kill := 0; ; kill++ {
					done := false
					last := kill
					if from == "nothing" {
						last = -1 // no kubelet starts before the end
					}
					for joins := -1; joins <= last; joins++ {
						if joins < 8 || joins == kill/2 || joins == kill { // in between, files are written one by one
							done = crash(t, from, retry, kill, joins)
						}
					}
					if done {
						if kill < 5 {
							t.Fatalf("only %d steps", kill)
						}
						return
					}
				}
			})
		}
	}
}

// crash plays one story and says whether the first run of the stage ended before it was killed.
func crash(t *testing.T, from, retry string, kill, joins int) (done bool) {
	t.Helper()
	w := newWorld(t)
	story := fmt.Sprintf("from %s, killed before step %d, joined before step %d, retry %s", from, kill, joins, retry)
	if from != "nothing" {
		w.must(w.node(w.configuration(label("a", tokenA)), -1))
	}
	if from == "running" {
		w.machine()
	}
	w.events = func(step int) {
		if step == joins {
			w.start() // systemd starts the machine at any time
			w.join()
		}
	}
	err := w.node(w.configuration(label("b", tokenB)), kill)
	if err != nil && !errors.Is(err, errKilled) {
		t.Fatalf("%s: %v", story, err)
	}
	w.events = nil
	w.start() // a reboot, before the retry
	if joins == kill {
		w.join() // in the reboot
	}
	w.must(w.node(w.configuration(label(retry, tokenB)), -1))
	w.machine()
	w.join()
	if !w.running || w.built() != w.joinedWith {
		t.Fatalf("%s: kubelet runs: %v; it joined with %q, and %q would be applied", story, w.running, w.joinedWith, w.built())
	}
	if have := w.fromFiles().Labels[zone]; have != retry || w.started.Labels[zone] != retry {
		t.Fatalf("%s: files have %q, kubelet was started with %q", story, have, w.started.Labels[zone])
	}
	if w.read(paths.BuiltBefore) != "" {
		t.Fatalf("%s: %s is left", story, paths.BuiltBefore)
	}
	before := w.snapshot()
	w.must(w.node(w.configuration(label(retry, tokenB)), -1))
	if diff := cmp.Diff(before, w.snapshot()); diff != "" {
		t.Fatalf("%s: one more run (-before +after):\n%s", story, diff)
	}
	return err == nil
}

// A credential from the start has no moment at which kubelet gets its own.
func TestPluginCredential(t *testing.T) {
	t.Parallel()
	plugin := func(command, value string) func(map[string]any) {
		return func(d map[string]any) {
			k := d["Kubelet"].(map[string]any)
			k["Labels"] = map[string]any{zone: value}
			k["Auth"] = map[string]any{"ExecCredential": map[string]any{"command": command}}
		}
	}
	w := newWorld(t)
	w.must(w.node(w.configuration(plugin("/wrong", "a")), -1))
	w.must(w.node(w.configuration(plugin("/wrong", "b")), -1)) // kubelet never ran
	if w.built() != "b" {
		t.Error("built.json is not the one of the second attempt")
	}
	w.machine()
	w.write(paths.Tree(slot)+"/var/lib/kubelet/pki/kubelet.crt", "PEM") // it ran
	w.must(w.node(w.configuration(plugin("/wrong", "c")), -1))
	if w.built() != "b" || w.stops != 0 {
		t.Errorf("built.json has %q, and kubelet may have registered with b", w.built())
	}
	w.must(w.node(w.configuration(plugin("/right", "d")), -1)) // the credential was wrong
	if w.built() != "d" || w.stops != 1 {
		t.Errorf("built.json has %q after the credential was exchanged; %d stops", w.built(), w.stops)
	}
	w.write(paths.Applied(slot), w.read(paths.Built))
	w.must(w.node(w.configuration(plugin("/newer", "e")), -1))
	if w.built() != "d" {
		t.Errorf("built.json has %q, and the node has joined with d", w.built())
	}
	if !strings.Contains(w.read(paths.Kubeconfig), "/newer") || w.read(paths.BootstrapKubeconfig) != "" {
		t.Error("the credential was not refreshed")
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must(os.RemoveAll(paths.At(w.root, paths.Tree(slot))))
	if err := w.node(w.configuration(nil), -1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a tree: %v", err)
	}
	w = newWorld(t)
	w.write("/etc/resolv.conf", "nameserver 127.0.0.1\n")
	if err := w.node(w.configuration(nil), -1); exit.Of(err) != exit.Refused {
		t.Errorf("resolver that pods cannot reach: %v", err)
	}
	own := func(d map[string]any) {
		d["Kubelet"].(map[string]any)["Configuration"] = map[string]any{"resolvConf": "/etc/pods.conf"}
	}
	w.must(w.node(w.configuration(own), -1))
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := &stage.Env{Root: w.root, Slot: slot, Log: journal.To(&w.log)}
	w.must(refresh(t.Context(), env)) // nothing is there yet
	w.must(os.MkdirAll(paths.At(w.root, "/dev"), 0o755))
	device := paths.At(w.root, "/dev/kvm")
	w.must(os.Symlink("/dev/null", device)) // a device to stat
	w.write("/etc/resolv.conf", "nameserver 127.0.0.53\n")
	w.write("/run/systemd/resolve/resolv.conf", "nameserver 10.0.0.1\n")
	c := w.configuration(nil)
	w.must(w.node(c, -1))
	before := w.snapshot()
	w.must(refresh(t.Context(), env))
	if diff := cmp.Diff(before, w.snapshot()); diff != "" {
		t.Errorf("an unchanged host (-before +after):\n%s", diff)
	}

	w.must(os.Remove(device))
	w.write("/run/systemd/resolve/resolv.conf", "nameserver 10.0.0.2\n")
	w.must(refresh(t.Context(), env))
	settings, err := os.ReadFile(paths.At(w.root, paths.Nspawn(slot)))
	if err != nil || !strings.Contains(string(settings), "\n# not there: Bind=/dev/kvm\n") {
		t.Errorf("settings (%v) name a device that is gone:\n%s", err, settings)
	}
	if have := w.read(resolv.Pods); have != "nameserver 10.0.0.2\n" {
		t.Errorf("pods resolve by %q", have)
	}
	w.must(w.node(c, -1))
	w.must(os.RemoveAll(w.inTree("")))
	w.must(refresh(t.Context(), env))
	if !strings.Contains(w.log.String(), "ignoring") {
		t.Error("a failure was not told")
	}
}
