package compare

import (
	"fmt"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What cannot be made on a test host, or is not to count, by what the programs print.
func TestReaders(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, section string
		before, after string
		want          []string
	}{
		{
			"swap", "swap", "Filename Type Size Used Priority\n", "Filename Type Size Used Priority\n/swap  file  1 0 -2\n",
			[]string{"swap /swap file 1 0 -2: new: there"},
		},
		{"legacy table", "legacy-tables", "", "ip nat\n", []string{"legacy-tables ip nat: new: there"}},
		{
			"legacy rule", "iptables-legacy-save", "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n", "*filter\n:INPUT DROP [7:9]\n-A INPUT -j ACCEPT\nCOMMIT\n",
			[]string{
				"iptables-legacy-save *filter :INPUT ACCEPT: gone: there", "iptables-legacy-save *filter :INPUT DROP: new: there",
				"iptables-legacy-save *filter rule INPUT: new: -A INPUT -j ACCEPT",
			},
		},
		{"counters of iptables", "iptables-nft-save", "# at noon\n*filter\n:INPUT ACCEPT [1:2]\n", "*filter\n:INPUT ACCEPT [3:4]\n", nil},
		{
			"counters and handles of nft", "nft",
			`{"nftables":[{"metainfo":{}},{"rule":{"family":"ip","table":"t","chain":"c","handle":1,"expr":[{"counter":{"packets":1,"bytes":2}}]}}]}`,
			`{"nftables":[{"rule":{"family":"ip","table":"t","chain":"c","handle":7,"expr":[{"counter":{"packets":3,"bytes":4}}]}}]}`, nil,
		},
		{
			"order of rules", "nft",
			`{"nftables":[{"rule":{"family":"ip","table":"t","chain":"c","expr":["a"]}},{"rule":{"family":"ip","table":"t","chain":"c","expr":["b"]}}]}`,
			`{"nftables":[{"rule":{"family":"ip","table":"t","chain":"c","expr":["b"]}},{"rule":{"family":"ip","table":"t","chain":"c","expr":["a"]}}]}`,
			[]string{
				`nft rule ip t c: was {"chain":"c","expr":["a"],"family":"ip","table":"t"}, is {"chain":"c","expr":["b"],"family":"ip","table":"t"}`,
				`nft rule ip t c #2: was {"chain":"c","expr":["b"],"family":"ip","table":"t"}, is {"chain":"c","expr":["a"],"family":"ip","table":"t"}`,
			},
		},
		{
			"peer groups", "mounts", "1 2 0:3 / /a rw shared:4 - tmpfs tmpfs rw\n", "7 2 0:9 / /a rw shared:5 - tmpfs tmpfs rw\n", nil,
		},
		{
			"propagation", "mounts", "1 2 0:3 / /a rw shared:4 - tmpfs tmpfs rw\n", "1 2 0:3 / /a rw - tmpfs tmpfs rw x\n",
			[]string{"mounts /a: was / rw shared - tmpfs tmpfs rw, is / rw - tmpfs tmpfs rw x"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			read := readers()[row.section]
			before, err := read(row.before)
			if err != nil {
				t.Fatal(err)
			}
			after, err := read(row.after)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, Diff(Snapshot{row.section: before}, Snapshot{row.section: after})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// An answer that is empty where there always is something is no answer.
func TestEmpty(t *testing.T) {
	t.Parallel()
	for _, section := range []string{"unit-files", "units", "sysctls", "nft", "links", "addresses", "mounts"} {
		if objects, err := readers()[section](""); err == nil {
			t.Errorf("%s of nothing = %v, want an error", section, objects)
		}
	}
	if _, err := parse("\x1eunits\na loaded active running\n\x1eend\n"); err == nil {
		t.Error("a look without most sections is taken")
	}
}

// The reference has all that may differ, and nothing else.
func TestDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "by `tests/compare`, but for:\n\n| what | which | why |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var want strings.Builder
	for _, e := range Exclusions() {
		when := ""
		if e.New {
			when = " (only where it was not before)"
		}
		object := strings.ReplaceAll(e.Object, `\\`, `\`) // of the pattern, not of the name
		fmt.Fprintf(&want, "| %s | `%s`%s | %s |\n", e.Class, object, when, e.Reason)
	}
	if diff := cmp.Diff(want.String(), table+"\n"); diff != "" {
		t.Errorf("docs/reference.md (-want +got):\n%s", diff)
	}
}

func TestExclusions(t *testing.T) {
	t.Parallel()
	for _, e := range Exclusions() {
		if _, err := path.Match(e.Object, ""); err != nil {
			t.Errorf("%s %s: %v", e.Class, e.Object, err)
		}
		if _, known := readers()[e.Class]; !known && e.Class != Files {
			t.Errorf("%s %s: no such class", e.Class, e.Object)
		}
		if e.Reason == "" {
			t.Errorf("%s %s: no reason", e.Class, e.Object)
		}
	}
}
