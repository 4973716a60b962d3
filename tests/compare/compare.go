// Package compare tells whether two looks at a booted host show the same host: its files, units, kernel parameters,
// packet filter, network, mounts, swap and ids. It stands behind the promise that a reset gives the host back.
//
// What may differ is in Exclusions, each with its reason; docs/reference.md has the same list. A look takes a second
// or two, and costs the host nothing but one shell.
package compare

import (
	_ "embed"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

//go:embed collect.sh
var collect string

// Snapshot is what a host is: for each class, a line for each object.
type Snapshot map[string]map[string]string

const settleLimit = 30 * time.Second

// Files is the class of files; the others are named by the sections of collect.sh.
const Files = "files"

// Take looks at a running host.
func Take(t host.T, h *host.Host) Snapshot {
	t.Helper()
	var left []string
	for _, e := range Exclusions() {
		if e.Class == Files && !e.New {
			left = append(left, e.Object)
		}
	}
	// A new address is on its way into the routes while it is tentative.
	h.Await(t, settleLimit, `test -z "$(ip -6 -o address show tentative)"`)
	// What says why an attempt has failed may still be at it when the next one has ended.
	h.Await(t, settleLimit, "! systemctl list-jobs --no-legend | grep -q "+paths.FailedUnit)
	snapshot, err := parse(h.MustRun(t, collect))
	if err != nil {
		t.Fatalf("look at the host: %v", err)
	}
	snapshot[Files] = h.Tree(t, host.TreeOptions{Exclude: left, NoTimes: true, Running: true})
	return snapshot
}

// parse makes a snapshot of the output of collect.sh.
func parse(output string) (Snapshot, error) {
	snapshot := Snapshot{}
	seen := map[string]bool{}
	for section := range strings.SplitSeq(output, "\x1e") {
		name, text, _ := strings.Cut(section, "\n")
		seen[name] = true
		read, known := readers()[name]
		if !known {
			continue
		}
		objects, err := read(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for key := range objects {
			if excluded(name, key, false) {
				delete(objects, key)
			}
		}
		snapshot[name] = objects
	}
	for name := range readers() {
		if !seen[name] {
			return nil, fmt.Errorf("no section %s", name)
		}
	}
	if !seen["end"] {
		return nil, fmt.Errorf("the output has no end")
	}
	return snapshot, nil
}

// excluded tells whether an object may differ, or may be there that was not.
func excluded(class, object string, isNew bool) bool {
	return slices.ContainsFunc(Exclusions(), func(e Exclusion) bool {
		if e.Class != class || e.New != isNew {
			return false
		}
		matched, err := path.Match(e.Object, object)
		return matched || err != nil
	})
}

// Diff is a line for each object that is not what it was, in order of class and name. Two looks at the same host
// have none.
func Diff(before, after Snapshot) []string {
	var lines []string
	for _, class := range slices.Sorted(maps.Keys(union(before, after))) {
		was, is := before[class], after[class]
		for _, object := range slices.Sorted(maps.Keys(union(was, is))) {
			old, had := was[object]
			now, has := is[object]
			switch {
			case had && has && old == now:
			case !had && excluded(class, object, true):
			case !had:
				lines = append(lines, fmt.Sprintf("%s %s: new: %s", class, object, now))
			case !has:
				lines = append(lines, fmt.Sprintf("%s %s: gone: %s", class, object, old))
			default:
				lines = append(lines, fmt.Sprintf("%s %s: was %s, is %s", class, object, old, now))
			}
		}
	}
	return lines
}

// union is a map with the keys of both.
func union[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return all
}
