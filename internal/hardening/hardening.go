// Package hardening names the files that keep a host's own maintenance from disturbing its node.
package hardening

import (
	"slices"
	"strings"

	"unbounded/internal/paths"
	"unbounded/internal/run"
)

const (
	undone = "Undone by " + paths.ResetTarget + ".\n"

	aptFile    = "/etc/apt/apt.conf.d/99-unbounded-no-restart-systemd"
	aptContent = `// Written by unbounded-conflicts.service: an upgrade that restarts
// systemd-machined takes the machine down. ` + undone +
		`Unattended-Upgrade::Package-Blacklist {
    "systemd";
    "systemd-container";
    "systemd-sysv";
    "libsystemd0";
    "libcap2";
    "libcap2-bin";
    "libpam-cap";
};
`

	needrestartFile    = "/etc/needrestart/conf.d/99-unbounded.conf"
	needrestartContent = `# Written by unbounded-conflicts.service: list services, restart none.
# ` + undone + `$nrconf{restart} = 'l';
`

	// networkdFile is read by systemd-networkd when it starts, not when it reloads (measured: 252, 257). It is
	// not restarted for it: on 252 a restart takes the uplink's addresses away for a moment, and those by DHCP
	// until the next answer, in the middle of the image pull. The service that runs now removes routes and
	// rules that are not its own only when a link is reconfigured by hand; every later
	// start, an upgrade's included, keeps them.
	networkdFile    = "/etc/systemd/networkd.conf.d/99-unbounded.conf"
	networkdContent = `# Written by unbounded-conflicts.service: routes and rules of the node are
# not networkd's to remove. ` + undone + `[Network]
ManageForeignRoutes=no
ManageForeignRoutingPolicyRules=no
`
)

// File is a file of a host.
type File struct{ Path, Content string }

// All are the files that hosts can have from us.
func All() []File {
	return []File{{aptFile, aptContent}, {needrestartFile, needrestartContent}, {networkdFile, networkdContent}}
}

// Files are those that the host below root needs: the ones for programs that it has, and the
// one for systemd-networkd if the host uses that.
func Files(root string, networkd bool) []File {
	var files []File
	if _, found := run.Find(root, "apt-get"); found {
		files = append(files, File{aptFile, aptContent})
	}
	if _, found := run.Find(root, "needrestart"); found {
		files = append(files, File{needrestartFile, needrestartContent})
	}
	if networkd {
		files = append(files, File{networkdFile, networkdContent})
	}
	return files
}

// Agents tells whether the public agent wrote text to path, whatever its comments and line breaks: it
// has our file names, and says nothing else than our files do.
func Agents(path, text string) bool {
	for _, file := range All() {
		if file.Path == path {
			return slices.Equal(words(text), words(file.Content))
		}
	}
	return false
}

// words are the words of a configuration of apt or needrestart without comments and punctuation, in their order.
func words(text string) []string {
	var words []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		line, _, _ = strings.Cut(line, "//")
		words = append(words, strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\r\n{};\"'=", r) })...)
	}
	return words
}
