// Package dropin keeps units of the host from running, for as long as a file is there.
//
// The file is a drop-in whose condition names itself. Enablement stays as the operator made it, starts do
// nothing, removing the file undoes it, and it works for unit files in /etc, which cannot be masked.
package dropin

import (
	"path/filepath"
	"slices"
	"strings"

	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

// base returns the name of every condition drop-in.
func base() string { return filepath.Base(paths.ConditionDropIn("x")) }

// Firewall is added for services that load packet-filter rules. Stopping and reloading them is made to do
// nothing to the rules: an ExecStop= of "nft flush ruleset" would take the node's rules or what is yet to be
// saved, and a reload runs ExecReload= whatever the conditions say. A daemon gets no chance to clean
// up after itself for the same reason.
const Firewall = `
[Service]
ExecReload=
ExecStop=
ExecStopPost=
KillSignal=SIGKILL
SuccessExitStatus=SIGKILL
`

// Content is the text of unit's drop-in, with more sections behind it.
func Content(unit, more string) string {
	path := paths.ConditionDropIn(unit)
	return "# Written by unbounded-conflicts.service: this host is a Kubernetes node, and\n" +
		"# " + unit + " would get in its way. While this file is there, it does not start.\n" +
		"# Undone by " + paths.ResetTarget + ".\n" +
		"[Unit]\n" +
		"ConditionPathExists=!" + strings.ReplaceAll(path, "%", "%%") + "\n" + more
}

// Stale tells whether systemd must reload before the drop-in on disk of a unit with properties p is in effect.
func Stale(p systemd.Properties) bool {
	if p.LoadState != "loaded" {
		return false // it is read when the unit is loaded
	}
	// A unit with aliases has a drop-in for each name, of which systemd takes one.
	ours := slices.ContainsFunc(p.DropInPaths, func(path string) bool { return filepath.Base(path) == base() })
	// NeedDaemonReload alone misses a first drop-in (systemd 252).
	return p.NeedDaemonReload || !ours
}
