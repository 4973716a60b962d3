package ignition

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"unbounded/internal/paths"
	"unbounded/units"
)

// check reports on everything that was given, and is the source of the configuration as it goes into the document.
func (in Input) check(report *Report) Source {
	if in.Prefix != path.Clean(in.Prefix) || !plain.MatchString(in.Prefix) || !writable(in.Prefix) || taken(in.Prefix) ||
		strings.HasPrefix(in.Prefix, "/etc/") || len(in.Prefix) > maxPrefix {
		report.fail("prefix", fmt.Sprintf("%q cannot hold the programs", in.Prefix), fixPrefix)
	}
	config := in.Config.check(in.RootImage, report)
	if in.BootComplete {
		report.warn("boot-complete", warnBootComplete, fixBootComplete)
	}
	for _, f := range in.Files {
		at := atFile(f.Path)
		switch {
		case f.Path != path.Clean(f.Path) || !utf8.ValidString(f.Path) || strings.ContainsFunc(f.Path, unicode.IsControl) || !writable(f.Path):
			report.fail(at, "is not a path where a file can be placed", fixFile)
		case taken(f.Path), strings.HasPrefix(f.Path, in.Prefix+"/"):
			report.fail(at, "is taken", fixTaken)
		case f.Mode&^0o777 != 0 || f.Mode == 0:
			report.fail(at, fmt.Sprintf("has a mode that cannot be given: %04o", f.Mode), fixMode)
		case len(f.Source.Content) > maxFile:
			report.fail(at, fmt.Sprintf("has %d bytes, and at most %d go into a document", len(f.Source.Content), maxFile), fixLarge)
		}
		f.Source.check(at, fixFile, report)
		if holdsSecret(f) {
			report.warn(at, inClear, fixKey)
		}
	}
	return config
}

const (
	maxPrefix = 200     // unit files have lines of at most 2048 bytes (systemd: LONG_LINE_MAX), some with the prefix twice
	maxFile   = 8 << 20 // far more than a file of settings
)

// atFile is where in the input the file path is.
func atFile(path string) string {
	if strings.ContainsFunc(path, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		path = strconv.Quote(path)
	}
	return "files[" + path + "]"
}

// plain is what may be in a path that is written into unit files.
var plain = regexp.MustCompile(`^/[A-Za-z0-9/._-]+$`)

// taken tells whether a path is, or is in, what the stages and reset own.
func taken(file string) bool {
	for _, dir := range []string{"/var/lib/unbounded", paths.Machines, paths.NspawnDir} {
		if file == dir || strings.HasPrefix(file, dir+"/") {
			return true
		}
	}
	return false
}

// clashes reports on files that were given and are in the way of others, or of what the document places itself.
func (d *Document) clashes(given []File, report *Report) {
	all := d.whole()
	var placed []string
	for _, f := range all.files {
		placed = append(placed, f.Path)
	}
	for _, l := range all.links {
		placed = append(placed, l.path)
	}
	for _, u := range all.units {
		placed = append(placed, u.paths()...)
	}
	slices.Sort(placed)
	seen := map[string]bool{}
	for _, f := range given {
		same := 0
		for _, other := range placed {
			if other == f.Path {
				same++
			}
			if !seen[f.Path] && (same > 1 || strings.HasPrefix(other, f.Path+"/") || strings.HasPrefix(f.Path, other+"/")) {
				report.fail(atFile(f.Path), "is in the way of "+other, fixTaken)
				break
			}
		}
		seen[f.Path] = true
	}
}

// writable tells whether an absolute path is on the disk of an image-based host, and neither in the image nor one of
// the folders that everything lies in.
func writable(file string) bool {
	if !strings.HasPrefix(file, "/") || strings.Count(file, "/") < 2 {
		return false
	}
	for _, dir := range []string{
		"/usr", "/bin", "/sbin", "/lib", "/lib64", "/boot", "/dev", "/proc", "/run", "/sys", "/tmp", "/var/run", "/var/lock", "/var/tmp",
	} {
		if file == dir || strings.HasPrefix(file, dir+"/") {
			return false
		}
	}
	return !slices.Contains([]string{"/var/lib", "/var/log", "/var/opt", "/var/home", "/etc/systemd", paths.SystemdDir}, file)
}

// check reports on a source. A secret in a URL is not shown.
func (s Source) check(at, fix string, report *Report) {
	if s.URL == "" {
		return
	}
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || !utf8.ValidString(s.URL) || strings.ContainsAny(s.URL, " \t\r\n") {
		report.fail(at, "is not fetched from an http:// or https:// URL", fixURL)
		return
	}
	if u.User != nil || u.RawQuery != "" {
		report.warn(at, maySign, "")
	}
	if raw, err := hex.DecodeString(s.SHA256); err != nil || len(raw) != 32 && len(raw) != 0 || s.SHA256 != strings.ToLower(s.SHA256) {
		report.fail(at, "has a SHA-256 that is none", fixSHA256)
	}
	if s.SHA256 == "" {
		report.warn(at, noHash, fix)
	}
}

// name is what a program may be called.
var name = regexp.MustCompile(`^unbounded(ctl|-[a-z0-9-]+)$`)

// checkPrograms demands each program once, and all that unit files start.
func (in Input) checkPrograms(report *Report) {
	var have []string
	for _, p := range in.Programs {
		at := "programs." + p.Name
		if !name.MatchString(p.Name) || slices.Contains(have, p.Name) {
			report.fail(at, "is not one of the product's programs, or there twice", fixProgram)
		}
		have = append(have, p.Name)
		if p.Source.URL == "" && len(p.Source.Content) == 0 {
			report.fail(at, "is empty", fixProgram)
		}
		p.Source.check(at, fixProgram, report)
	}
	wanted, err := units.Programs()
	if err != nil {
		report.fail("programs", err.Error(), "")
	}
	for _, program := range append(wanted, "unboundedctl") { // which resets the host
		if !slices.Contains(have, program) {
			report.fail("programs."+program, isMissing, fixProgram)
		}
	}
}
