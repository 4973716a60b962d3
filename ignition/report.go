package ignition

import (
	"fmt"
	"strings"
)

// Report is what is to be said about an input, in the order of its parts. No text of it holds a secret.
type Report []Entry

// Entry is one error or warning.
type Entry struct {
	Warning bool
	Path    string // where in the input, as config.Kubelet.Auth.BootstrapToken; "" for all of it
	What    string // "is missing"
	Fix     string // what can be done about it
}

func (e Entry) String() string {
	text := "error: "
	if e.Warning {
		text = "warning: "
	}
	if e.Path != "" {
		text += e.Path + ": "
	}
	text += e.What
	if e.Fix != "" {
		text += " (" + e.Fix + ")"
	}
	return text
}

// Failed tells whether there is an error.
func (r Report) Failed() bool {
	for _, e := range r {
		if !e.Warning {
			return true
		}
	}
	return false
}

// String has a line for each entry.
func (r Report) String() string {
	var text strings.Builder
	for _, e := range r {
		fmt.Fprintln(&text, e)
	}
	return text.String()
}

func (r *Report) fail(path, what, fix string) { *r = append(*r, Entry{false, path, what, fix}) }
func (r *Report) warn(path, what, fix string) { *r = append(*r, Entry{true, path, what, fix}) }

// What operators read.
const (
	isMissing = "is missing"
	inClear   = "is a secret, and whoever can read the user data of this host can read it"
	mayHold   = "may hold a secret, and whoever can read the user data of this host can read it"
	maySign   = "has a user or a query, which may be a secret, and whoever can read the user data of this host can read it"
	noHash    = "has no SHA-256: whatever the server gives is taken"
	overHTTP  = "is fetched over plain http, where it can be read and changed on the way"

	fixPrefix     = "give a clean absolute path of letters, digits and /._- below a folder that the image lets you write, as /opt/unbounded"
	fixSecret     = "deliver the configuration with --config-credential or --config-url"
	fixHash       = "give --config-sha256"
	fixHTTPS      = "use an https:// URL"
	fixProgram    = "give all programs of one release"
	fixConfigOne  = "give exactly one of --config, --config-credential and --config-url"
	fixURL        = "give an http:// or https:// URL"
	fixSHA256     = "give 64 hexadecimal digits"
	fixImage      = "the configuration is not known here: set OCIImage in it"
	fixCredential = "use at most 255 letters, digits and ._-"
	fixFile       = "write PATH=SOURCE[,mode=0644][,sha256=HEX], with a clean absolute path below a folder that is on the host's disk"
	fixTaken      = "choose another path"
	fixMode       = "give octal digits from 0001 to 0777"
	fixLarge      = "serve it, and give its URL"
	fixConfig     = "mend the file that --config names"
	fixKey        = "deliver it as a systemd credential, or by URL"

	warnBootComplete = "makes a boot that does not end as a node a failed boot: when registry or API server are away, " +
		"a system that counts boots goes back to its former version"
	fixBootComplete = "leave --boot-complete out unless that is meant"
)

// Size warns when a document is larger than limit bytes; a limit of 0 is none.
func (r *Report) Size(bytes, limit int) {
	if limit > 0 && bytes > limit {
		r.warn("", fmt.Sprintf("the document has %d bytes, and user data of some clouds at most %d", bytes, limit),
			"fetch programs by URL and leave --plain out; or give this document a URL and point to it with ignition.config.replace; or set --max-size")
	}
}
