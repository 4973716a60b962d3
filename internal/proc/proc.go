// Package proc reads what the kernel says about processes.
package proc

import (
	"fmt"
	"os"
	"strings"
)

// Unit is the systemd unit that process pid belongs to, from its cgroup below proc
// ("/proc"): the innermost service or scope. Empty when there is none or it cannot be read.
func Unit(proc string, pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("%s/%d/cgroup", proc, pid))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		name := ""
		for part := range strings.SplitSeq(group, "/") {
			if strings.HasSuffix(part, ".service") || strings.HasSuffix(part, ".scope") {
				name = part
			}
		}
		return name
	}
	return ""
}
