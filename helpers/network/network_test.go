package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"unbounded/internal/before"
	"unbounded/internal/journal"
	"unbounded/internal/overlay"
	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/internal/stage"
)

type fakeSlots map[string]error // nil: runs

func (f fakeSlots) SlotRuns(_ context.Context, slot string) (bool, error) {
	err, ok := f[slot]
	return ok && err == nil, err
}

func TestRuns(t *testing.T) {
	for _, test := range []struct {
		name  string
		slots fakeSlots
		want  string
		fail  bool
	}{
		{name: "none", slots: fakeSlots{}},
		{name: "kube1", slots: fakeSlots{"kube1": nil}, want: "kube1"},
		{name: "kube2", slots: fakeSlots{"kube2": nil}, want: "kube2"},
		{name: "cannot tell", slots: fakeSlots{"kube2": errors.New("bus is away")}, fail: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := runs(t.Context(), test.slots)
			if got != test.want || (err != nil) != test.fail {
				t.Errorf("runs = %q, %v, want %q, failure %v", got, err, test.want, test.fail)
			}
		})
	}
}

// host is an empty host with a network namespace of its own.
func host(t *testing.T) (*stage.Env, *overlay.Network, *bytes.Buffer) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs the %s program", program)
		}
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and the namespace with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("unshare: %v", err)
	}
	n, err := overlay.Dial(0, overlay.Public())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	root := t.TempDir()
	write(t, root, "/proc/sys/kernel/random/boot_id", "boot-1\n")
	var log bytes.Buffer
	return &stage.Env{Root: root, Log: journal.To(&log), Record: record.Record{Prefix: "/opt/unbounded"}}, n, &log
}

func write(t *testing.T, root, path, content string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, line string) string {
	t.Helper()
	argv := strings.Fields(line)
	output, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, output)
	}
	return string(output)
}

// links are the names of the links of those kinds that tests make.
func links(t *testing.T) []string {
	t.Helper()
	var names []string
	for line := range strings.Lines(run(t, "ip -o link")) {
		name, _, _ := strings.Cut(strings.TrimSuffix(strings.Fields(line)[1], ":"), "@")
		if name != "lo" {
			names = append(names, name)
		}
	}
	return names
}

func load(t *testing.T, env *stage.Env) *before.Image {
	t.Helper()
	image, err := before.Load(env.Root, concern)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func mustNote(t *testing.T, env *stage.Env, n *overlay.Network) {
	t.Helper()
	if err := note(env, load(t, env), n); err != nil {
		t.Fatal(err)
	}
}

func mustGiveBack(t *testing.T, env *stage.Env, n *overlay.Network) {
	t.Helper()
	if err := giveBack(env, n); err != nil {
		t.Fatal(err)
	}
}

// What was there before the node stays, what came after goes, and once that is done nothing is touched any more.
func TestNoteAndGiveBack(t *testing.T) {
	env, n, log := host(t)
	write(t, env.Root, "/etc/wireguard/server.priv", "the operator's secret")
	run(t, "ip link add vxlan0 type vxlan id 1 dstport 4789")
	mustNote(t, env, n)
	if data, err := os.ReadFile(paths.At(env.Root, paths.Before+"/network.json")); err != nil || bytes.Contains(data, []byte("secret")) {
		t.Errorf("the note is %s, %v", data, err)
	}
	run(t, "ip link add cbr0 type bridge")
	run(t, "ip link add br0 type bridge")
	run(t, "nft add table ip kube-proxy")
	write(t, env.Root, "/etc/wireguard/server.pub", "ours")

	mustGiveBack(t, env, n)
	if diff := cmp.Diff([]string{"vxlan0", "br0"}, links(t)); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	if got := run(t, "nft list tables"); got != "" {
		t.Errorf("tables are left: %s", got)
	}
	if got := there(t, env.Root, "/etc/wireguard"); !cmp.Equal(got, []string{"server.priv"}) {
		t.Errorf("keys are %v, want only the operator's", got)
	}
	for _, want := range []string{"link vxlan0 was there before the node, and is left", "server.priv was there before the node", "link cbr0"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("nothing says %q:\n%s", want, log)
		}
	}

	// Later stages have given things back, or the operator has: they are not the node's.
	log.Reset()
	run(t, "ip link add cbr0 type bridge")
	run(t, "nft add table ip kube-proxy")
	write(t, env.Root, "/etc/wireguard/server.pub", "somebody's")
	mustGiveBack(t, env, n)
	if log.Len() > 0 {
		t.Errorf("the second time it says:\n%s", log)
	}
	if got := links(t); len(got) != 3 {
		t.Errorf("links are %v, want three", got)
	}
}

func there(t *testing.T, root, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// A host without anything is noted too, and the folder of keys that a node made goes with them.
func TestNothingBefore(t *testing.T) {
	env, n, _ := host(t)
	if err := os.MkdirAll(filepath.Join(env.Root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	mustNote(t, env, n)
	if image := load(t, env); !noted(image) || image.Has(name, done) {
		t.Error("nothing was noted")
	}
	write(t, env.Root, "/etc/wireguard/server.priv", "ours")
	write(t, env.Root, "/etc/wireguard/server.pub", "ours")
	run(t, "ip link add vxlan0 type vxlan id 1 dstport 4789")
	mustGiveBack(t, env, n)
	if got := links(t); len(got) > 0 {
		t.Errorf("links %v are left", got)
	}
	if got := there(t, env.Root, "/etc"); len(got) > 0 {
		t.Errorf("%v is left in /etc", got)
	}
}

// A folder of keys that the operator's package made after the node came stays, empty as it is.
func TestFolderOfSomebody(t *testing.T) {
	env, n, log := host(t)
	mustNote(t, env, n)
	if err := os.MkdirAll(filepath.Join(env.Root, "etc/wireguard"), 0o755); err != nil {
		t.Fatal(err)
	}
	mustGiveBack(t, env, n)
	if got := there(t, env.Root, "/etc"); len(got) != 1 {
		t.Errorf("in /etc there is %v", got)
	}
	if log.Len() > 0 {
		t.Errorf("it says:\n%s", log)
	}
}

// Killed after the last key and before the folder, the next run removes that too.
func TestKeysCutOff(t *testing.T) {
	env, n, _ := host(t)
	if err := os.MkdirAll(filepath.Join(env.Root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	mustNote(t, env, n)
	write(t, env.Root, "/etc/wireguard/server.priv", "ours")
	write(t, env.Root, "/etc/wireguard/a", "in the way")
	image := load(t, env)
	log := overlay.Log{Removed: func(string) {}, Left: func(string) {}}
	if err := removeKeys(env, image, log); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(env.Root, "/etc/wireguard/a")); err != nil {
		t.Fatal(err)
	}
	mustGiveBack(t, env, n)
	if got := there(t, env.Root, "/etc"); len(got) > 0 {
		t.Errorf("%v is left in /etc", got)
	}
}

// The note of an installation that was reset says nothing about the next.
func TestStaleNote(t *testing.T) {
	env, n, _ := host(t)
	mustNote(t, env, n)
	mustGiveBack(t, env, n)
	run(t, "ip link add vxlan0 type vxlan id 1 dstport 4789")
	mustNote(t, env, n)
	image := load(t, env)
	if image.Has(name, done) || !image.Has(name, "link vxlan0") {
		t.Errorf("the new note has %v", image.Entries())
	}
}

// Without a note, names and kinds decide, but only where a node has been.
func TestWithoutNote(t *testing.T) {
	for _, test := range []struct {
		name   string
		record record.Record
		files  []string
		gone   bool
	}{
		{name: "cut off before the note", record: record.Record{Prefix: "/opt/unbounded"}, files: []string{paths.Tree("kube1") + "/etc/os-release", paths.Nspawn("kube1")}},
		{name: "the note was lost", record: record.Record{Prefix: "/opt/unbounded"}, files: []string{paths.Active("kube2")}, gone: true},
		{name: "a host of nobody", record: record.Record{}},
		{name: "the public agent's", record: record.Record{}, files: []string{paths.Tree("kube1") + "/etc/os-release"}, gone: true},
		{name: "the public agent's, its tree lost", record: record.Record{}, files: []string{paths.Applied("kube1")}, gone: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			env, n, log := host(t)
			env.Record = test.record
			for _, file := range test.files {
				write(t, env.Root, file, "")
			}
			write(t, env.Root, "/etc/wireguard/server.priv", "whose?")
			run(t, "ip link add vxlan0 type vxlan id 1 dstport 4789")
			run(t, "ip link add wg51820 type veth peer name other") // of another kind
			for range 2 {
				mustGiveBack(t, env, n)
				want := []string{"vxlan0", "other", "wg51820"}
				if test.gone {
					want = want[1:]
				}
				if diff := cmp.Diff(want, links(t)); diff != "" {
					t.Errorf("links (-want +got):\n%s", diff)
				}
			}
			if got := there(t, env.Root, "/etc/wireguard"); len(got) != 1 {
				t.Errorf("keys are %v", got)
			}
			if said := strings.Contains(log.String(), "server.priv may be the operator's"); said != test.gone {
				t.Errorf("it says:\n%s", log)
			}
		})
	}
}

// Tables of the older packet filter are named, if they came with the node.
func TestLegacyTables(t *testing.T) {
	env, n, log := host(t)
	write(t, env.Root, "/proc/net/ip_tables_names", "filter\n")
	mustNote(t, env, n)
	write(t, env.Root, "/proc/net/ip_tables_names", "filter\nnat\n")
	log.Reset()
	mustGiveBack(t, env, n)
	if !strings.Contains(log.String(), "iptables-legacy table nat may have rules of the node") || strings.Contains(log.String(), "table filter") {
		t.Errorf("it says:\n%s", log)
	}
}

// A table that the host had and that was flushed is to be put back whole: nothing of the node may be in its place.
func TestFlushedTable(t *testing.T) {
	env, n, _ := host(t)
	run(t, "nft add table ip nat")
	run(t, "nft add chain ip nat KUBE-OLD")
	mustNote(t, env, n)
	flushed, err := before.Load(env.Root, "nftables")
	if err != nil {
		t.Fatal(err)
	}
	flushed.Keep(before.Change{Kind: before.Ruleset, Object: "ip nat", Now: before.State{Bytes: []byte("as it was")}, Want: before.Gone()})
	if err := flushed.Save(); err != nil {
		t.Fatal(err)
	}
	mustGiveBack(t, env, n)
	if got := run(t, "nft list tables"); got != "" {
		t.Errorf("tables are left: %s", got)
	}
}
