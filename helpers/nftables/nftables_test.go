package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/before"
	"unbounded/internal/exit"
	"unbounded/internal/journal"
	"unbounded/internal/nft"
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
		{name: "cannot tell", slots: fakeSlots{"kube1": errors.New("bus is away")}, fail: true},
		{name: "cannot tell the second", slots: fakeSlots{"kube2": errors.New("bus is away")}, fail: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := runs(t.Context(), test.slots)
			if got != test.want || (err != nil) != test.fail {
				t.Errorf("runs = %q, %v, want %q, failure %v", got, err, test.want, test.fail)
			}
		})
	}
}

// fakeFilter holds tables; others may write before a flush.
type fakeFilter struct {
	tables  []nft.Table
	writers []nft.Table // appear one by one, each just before a flush
	flushes int
	refuses map[string]error // to restore, by name
}

func (f *fakeFilter) Save() (*nft.Ruleset, error) {
	return &nft.Ruleset{Generation: uint32(len(f.tables) + 1), Tables: f.tables}, nil
}

func (f *fakeFilter) Flush(generation uint32) error {
	f.flushes++
	if len(f.writers) > 0 {
		f.tables = append(f.tables, f.writers[0])
		f.writers = f.writers[1:]
	}
	if int(generation) != len(f.tables)+1 {
		return nft.ErrChanged
	}
	_, f.tables = split(f.tables)
	return nil
}

func host(t *testing.T) (*stage.Env, *bytes.Buffer) {
	t.Helper()
	root := t.TempDir()
	write(t, root, "/proc/sys/kernel/random/boot_id", "boot-1\n")
	var log bytes.Buffer
	return &stage.Env{Root: root, Log: journal.To(&log)}, &log
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

func table(name string, owner uint32) nft.Table {
	return nft.Table{Family: 1, Name: name, Owner: owner}
}

func saved(t *testing.T, env *stage.Env) []string {
	t.Helper()
	image, err := before.Load(env.Root, concern)
	if err != nil {
		t.Fatal(err)
	}
	var objects []string
	for _, e := range image.Entries() {
		objects = append(objects, e.Object)
	}
	return objects
}

func TestClean(t *testing.T) {
	a, b, c := table("a", 0), table("b", 0), table("c", 42)
	for _, test := range []struct {
		name    string
		filter  fakeFilter
		left    []string
		saved   []string
		flushes int
		fail    bool
	}{
		{name: "empty"},
		{name: "two tables", filter: fakeFilter{tables: []nft.Table{a, b}}, saved: []string{"inet a", "inet b"}, flushes: 1},
		{name: "only owned ones", filter: fakeFilter{tables: []nft.Table{c}}, left: []string{"inet c"}},
		{
			name: "owned beside free", filter: fakeFilter{tables: []nft.Table{a, c}},
			left: []string{"inet c"}, saved: []string{"inet a"}, flushes: 1,
		},
		{
			name: "changed in between", filter: fakeFilter{tables: []nft.Table{a}, writers: []nft.Table{b}},
			saved: []string{"inet a", "inet b"}, flushes: 2,
		},
		{
			name: "changed for ever", filter: fakeFilter{tables: []nft.Table{a}, writers: make([]nft.Table, 100)},
			flushes: attempts, fail: true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			env, _ := host(t)
			err := clean(env, &test.filter)
			if (err != nil) != test.fail {
				t.Fatalf("err = %v, want failure %v", err, test.fail)
			}
			if test.filter.flushes != test.flushes {
				t.Errorf("%d flushes, want %d", test.filter.flushes, test.flushes)
			}
			if test.fail {
				return
			}
			var left []string
			for _, table := range test.filter.tables {
				left = append(left, table.String())
			}
			if diff := cmp.Diff(test.left, left); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.saved, saved(t, env)); diff != "" {
				t.Errorf("saved (-want +got):\n%s", diff)
			}
		})
	}
}

// A retry clears what appeared since, adds it to the image, and keeps what was first found.
func TestCleanAgain(t *testing.T) {
	env, _ := host(t)
	for _, tables := range [][]nft.Table{{table("a", 0)}, {table("a", 0), table("b", 0)}} {
		if err := clean(env, &fakeFilter{tables: tables}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"inet a", "inet b"}, saved(t, env)); diff != "" {
		t.Errorf("saved (-want +got):\n%s", diff)
	}
}

func TestWarnings(t *testing.T) {
	env, log := host(t)
	write(t, env.Root, "/proc/net/ip_tables_names", "filter\nnat\n")
	write(t, env.Root, "/proc/net/ip6_tables_names", "")
	write(t, env.Root, "/proc/42/comm", "guard\n")
	if err := clean(env, &fakeFilter{tables: []nft.Table{table("c", 42)}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"iptables-legacy has tables filter, nat", "table inet c is owned by guard (pid 42)"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log has no %q:\n%s", want, log)
		}
	}
	if strings.Contains(log.String(), "ip6tables-legacy") {
		t.Errorf("log names an empty ip6tables-legacy:\n%s", log)
	}
}

func TestExplain(t *testing.T) {
	for _, test := range []struct {
		err  error
		want exit.Status
	}{
		{nft.ErrNotPermitted, exit.NotPermitted},
		{nft.ErrUnsupported, exit.Refused},
		{errors.New("anything"), exit.Failed},
	} {
		if got := exit.Of(explain(test.err)); got != test.want {
			t.Errorf("explain(%v) has status %d, want %d", test.err, got, test.want)
		}
	}
}

// A node that ran in an attempt that was cut off has left tables: they are flushed, and are not the host's.
func TestCleanAfterANode(t *testing.T) {
	env, _ := host(t)
	write(t, env.Root, "/var/lib/machines/kube1/etc/os-release", "")
	proxy := nft.Table{Family: 1, Name: "kube-proxy"}
	if err := clean(env, &fakeFilter{tables: []nft.Table{table("a", 0), proxy}}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"inet a"}, saved(t, env)); diff != "" {
		t.Errorf("saved (-want +got):\n%s", diff)
	}
}
