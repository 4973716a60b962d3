//go:build host || cluster || fault

// Package fault holds every helper to the promise that no kill, full disk or fault can strand a host: one
// table of helpers and verbs, and for each the program dies at, or one call fails at, every change to the world that it makes.
//
// After each point the install record parses or is absent, every file is as before or as at the end, and
// the next plain run ends where an undisturbed one does.
//
// The build tag fault runs every point, the tags host and cluster a sample of them. What to run can be narrowed,
// and the counts be written down:
//
//	UNBOUNDED_FAULT_ROW     a regular expression: only rows whose name matches
//	UNBOUNDED_FAULT_KIND    only faults that match: kill, EIO, ENOSPC, EDQUOT, EROFS
//	UNBOUNDED_FAULT_REPORT  a file to which a line for each row is added
package fault

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

const slot = "kube1"

// operator is what an operator's Debian has that the bootstrap changes.
func operator() map[string]host.File {
	return map[string]host.File{
		"/etc/nftables.conf": {Mode: 0o755, Content: `#!/usr/sbin/nft -f
flush ruleset
table inet operator {
	chain input {
		type filter hook input priority filter; policy accept;
		tcp dport 10250 drop
	}
}
`},
		paths.SystemdDir + "/sysinit.target.wants/nftables.service": {Link: "/lib/systemd/system/nftables.service"},
		paths.SystemdDir + "/docker.service":                        {Content: "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"},
		paths.SystemdDir + "/multi-user.target.wants/docker.service": {
			Link: paths.SystemdDir + "/docker.service",
		},
		"/etc/docker/daemon.json": {Content: "{\n\t\"debug\": true\n}\n"},
		"/etc/fstab":              {Content: "# swap was here\n/dev/absent none swap sw,nofail 0 0\n"},
	}
}

// wanted tells whether a row is to be run.
func wanted(name string) bool {
	return regexp.MustCompile(os.Getenv("UNBOUNDED_FAULT_ROW")).MatchString(name)
}

// tell prints, and adds to the report.
func tell(t *testing.T, text string) {
	t.Helper()
	fmt.Print(text)
	path := os.Getenv("UNBOUNDED_FAULT_REPORT")
	if path == "" {
		return
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteString(text)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Error(err)
	}
}
