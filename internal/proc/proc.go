// Package proc reads what the kernel says about processes, and its way to write paths.
package proc

import (
	"fmt"
	"os"
	"strconv"
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

// Unescape undoes the octal escapes of a path in mountinfo and swaps: \040 is a space.
func Unescape(text string) string {
	var plain strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if code, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				plain.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		plain.WriteByte(text[i])
	}
	return plain.String()
}
