package diagnosis

import (
	"context"
	"regexp"
	"strings"

	"unbounded/internal/paths"
	"unbounded/internal/run"
)

// LastWords returns the last line of kubelet's log that says why it ended, or the last line at all; empty
// when there is none. Root is the root of the machine as its processes see it (/proc/<leader>/root): its
// journal is in memory unless the image keeps one. No library in Go reads a journal.
func LastWords(ctx context.Context, root string) (string, error) {
	out, err := run.Command(ctx, run.Env(), "journalctl", "--root="+root, "--quiet", "--no-pager", "--output=cat", "--lines=50",
		"_SYSTEMD_UNIT="+paths.KubeletUnit)
	if err != nil {
		return "", err
	}
	return lastWords(string(out)), nil
}

// klogError matches the head of klog's lines: E1130 12:00:00.000000    1 run.go:72] …
var klogError = regexp.MustCompile(`^[EF]\d{4} [\d:.]+\s+\d+ \S+\] `)

func lastWords(log string) string {
	last, cause := "", ""
	for line := range strings.Lines(log) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		last = line
		if klogError.MatchString(line) {
			cause = line
		}
	}
	if cause == "" {
		cause = last
	}
	return short(hide(klogError.ReplaceAllString(cause, "")))
}

// tokenForm is a bootstrap token. Kubelet prints none; whoever changes that is not to leak one through us.
var tokenForm = regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`)

func hide(line string) string { return tokenForm.ReplaceAllString(line, "[redacted]") }

func short(line string) string {
	const most = 500
	if len(line) > most {
		line = strings.ToValidUTF8(line[:most], "") + "…"
	}
	return line
}
