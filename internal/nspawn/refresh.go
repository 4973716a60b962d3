package nspawn

import (
	"slices"
	"strings"
)

const (
	bindDevice = "Bind=/dev/"
	awayMark   = "# not there: "
)

// Refresh returns settings with the device nodes that the host has now: lines of nodes that are
// gone become comments, those of nodes that are back become lines again, and the nodes of
// d that have no line get one. Everything else stays. A machine whose settings name a node
// that is not there does not start.
func Refresh(settings string, d Devices, exists func(node string) bool) string {
	var lines, known []string
	last := -1 // of the lines for devices
	for line := range strings.Lines(settings) {
		bare, newline := strings.TrimPrefix(strings.TrimSuffix(line, "\n"), awayMark), "\n"
		if !strings.HasPrefix(bare, bindDevice) {
			lines = append(lines, line)
			continue
		}
		node := strings.TrimPrefix(bare, "Bind=")
		known = append(known, node)
		if !exists(node) {
			bare = awayMark + bare
		}
		last = len(lines)
		lines = append(lines, bare+newline)
	}
	var added []string
	for _, node := range d.Nodes {
		if !slices.Contains(known, node) {
			added = append(added, "Bind="+node+"\n")
		}
	}
	if len(added) > 0 && last < 0 {
		last = slices.Index(lines, "[Files]\n")
	}
	return strings.Join(slices.Insert(lines, last+1, added...), "")
}
