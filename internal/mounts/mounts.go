// Package mounts reads the mount table and unmounts what is mounted below a folder.
//
// Nothing is ever unmounted lazily: a mount that is in use stays, and the error says by whom. A mount is
// addressed by its folder, opened without following a link, and its name there, and must be the one
// that the table lists, so nothing that was moved or mounted meanwhile is hit in its place.
package mounts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"unbounded/internal/proc"
)

// Mount is one mount of the table.
type Mount struct {
	ID     int
	Parent int    // ID of the mount that it is mounted on
	Point  string // where, from the root of this process, without links
	Type   string // of file system
	Source string // device, as the file system names it
	Peers  int    // its peer group, 0 for none: what is mounted and unmounted on it is on its peers too
}

// String says it for messages.
func (m Mount) String() string { return fmt.Sprintf("%q (%s, %s)", m.Point, m.Source, m.Type) }

// Read returns the mounts that this process sees, from proc ("/proc").
func Read(proc string) ([]Mount, error) {
	path := proc + "/self/mountinfo"
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []Mount
	for line := range strings.Lines(string(data)) {
		m, err := parse(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		all = append(all, m)
	}
	return all, nil
}

// parse reads one line: id, parent, device, root, point, options, any number of tags, "-", type, source, options.
// Only single spaces separate; names have theirs escaped, and a source may be empty.
func parse(line string) (m Mount, err error) {
	front, back, found := strings.Cut(line, " - ")
	fields, last := strings.Split(front, " "), strings.Split(back, " ")
	if !found || len(fields) < 6 || len(last) < 2 {
		return m, fmt.Errorf("not a mount: %q", line)
	}
	if m.ID, err = strconv.Atoi(fields[0]); err != nil {
		return m, fmt.Errorf("not a mount: %q", line)
	}
	if m.Parent, err = strconv.Atoi(fields[1]); err != nil {
		return m, fmt.Errorf("not a mount: %q", line)
	}
	if m.Point = proc.Unescape(fields[4]); !filepath.IsAbs(m.Point) {
		return m, fmt.Errorf("not a mount: %q", line)
	}
	m.Type, m.Source = proc.Unescape(last[0]), proc.Unescape(last[1])
	for _, tag := range fields[6:] {
		if group, ok := strings.CutPrefix(tag, "shared:"); ok {
			m.Peers, err = strconv.Atoi(group)
		}
	}
	return m, err
}

// On are the mounts at dir itself, the lowest first. dir has no links.
func On(all []Mount, dir string) []Mount {
	return slices.DeleteFunc(slices.Clone(all), func(m Mount) bool { return m.Point != dir })
}

// within tells whether path is below dir.
func within(path, dir string) bool {
	return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// act is what is to be done with a mount.
type act int

const (
	unmount act = iota
	leave       // its peer group, lest unmounting what is on it unmounts the same on its peers
	refuse      // it hides a mount that cannot leave its peer group
)

// step is a mount and what is to be done with it.
type step struct {
	Mount
	act   act
	other string // the peer that refuse is about
}

// plan is what is mounted below dirs, in the order in which it can be unmounted: what is mounted on a mount
// before it, and what hides another mount before that one.
func plan(all []Mount, dirs []string) []step {
	p := planner{inside: map[int]bool{}, on: map[int][]Mount{}, outside: map[int]string{}}
	for _, m := range all {
		p.inside[m.ID] = slices.ContainsFunc(dirs, func(dir string) bool { return within(m.Point, dir) })
		if !p.inside[m.ID] && m.Peers != 0 {
			p.outside[m.Peers] = m.Point
		}
	}
	var tops []Mount
	for _, m := range all {
		switch {
		case !p.inside[m.ID]:
		case p.inside[m.Parent]:
			p.on[m.Parent] = append(p.on[m.Parent], m)
		default:
			tops = append(tops, m)
		}
	}
	p.each(tops)
	return p.steps
}

type planner struct {
	inside  map[int]bool    // is to be unmounted
	on      map[int][]Mount // by the mount that they are mounted on
	outside map[int]string  // a mount that stays, by peer group
	steps   []step
}

// each plans sisters. A mount hides its sister when that is at or below its point, never the other way round.
func (p *planner) each(sisters []Mount) {
	slices.SortStableFunc(sisters, func(a, b Mount) int { return len(a.Point) - len(b.Point) })
	for _, m := range sisters {
		p.visit(m)
	}
}

func (p *planner) visit(m Mount) {
	var over, below []Mount
	for _, child := range p.on[m.ID] {
		if child.Point == m.Point {
			over = append(over, child)
		} else {
			below = append(below, child)
		}
	}
	delete(p.on, m.ID) // each mount once, whatever the table says
	if other := p.outside[m.Peers]; other != "" && len(over) > 0 {
		p.steps = append(p.steps, step{over[0], refuse, other})
	}
	p.each(over)
	if m.Peers != 0 && len(below) > 0 {
		p.steps = append(p.steps, step{m, leave, ""})
	}
	p.each(below)
	p.steps = append(p.steps, step{m, unmount, ""})
}
