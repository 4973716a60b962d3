package ignition

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"unbounded/internal/paths"
)

// check reports on everything that was given, and is the source of the configuration as it goes into the document.
func (in Input) check(report *Report) Source {
	if in.Prefix != path.Clean(in.Prefix) || !plain.MatchString(in.Prefix) || !writable(in.Prefix) {
		report.fail("prefix", fmt.Sprintf("%q cannot hold the programs", in.Prefix), fixPrefix)
	}
	config := in.Config.check(in.RootImage, report)
	if in.BootComplete {
		report.warn("boot-complete", warnBootComplete, fixBootComplete)
	}
	taken := []string{paths.Config, in.Prefix + "/" + manifest, in.Prefix + "/current", in.Prefix + "/last-good"}
	for _, f := range in.Files {
		at := "files[" + f.Path + "]"
		switch {
		case f.Path != path.Clean(f.Path) || !writable(f.Path) || f.Mode&^0o777 != 0 || f.Mode == 0:
			report.fail(at, "is not a file that can be placed", fixFile)
		case slices.Contains(taken, f.Path), strings.HasPrefix(f.Path, path.Join(in.Prefix, slot)+"/"), isUnit(f.Path):
			report.fail(at, "is taken", fixTaken)
		}
		taken = append(taken, f.Path)
		f.Source.check(at, fixFile, report)
		if bytes.Contains(f.Source.Content, []byte("PRIVATE KEY-----")) || f.Path == paths.RegistryAuth && f.Source.URL == "" {
			report.warn(at, inClear, fixKey)
		}
	}
	return config
}

// plain is what may be in a path that is written into unit files.
var plain = regexp.MustCompile(`^/[A-Za-z0-9/._-]+$`)

// isUnit tells whether a file would be one of our unit files, or a drop-in of one.
func isUnit(file string) bool { return strings.HasPrefix(file, paths.SystemdDir+"/unbounded-") }

// writable tells whether an absolute path is on the disk of an image-based host and not in the image.
func writable(file string) bool {
	if !strings.HasPrefix(file, "/") || file == "/" {
		return false
	}
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/boot", "/dev", "/proc", "/run", "/sys", "/tmp"} {
		if file == dir || strings.HasPrefix(file, dir+"/") {
			return false
		}
	}
	return true
}

// check reports on a source. A secret in a URL is not shown.
func (s Source) check(at, fix string, report *Report) {
	if s.URL == "" {
		return
	}
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		report.fail(at, "is not fetched from a URL that Ignition knows", fixURL)
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
func (in Input) checkPrograms(rendered map[string]string, report *Report) {
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
	var wanted []string
	folder := in.Prefix + "/current/"
	for _, content := range rendered {
		for line := range strings.Lines(content) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="+folder)
			if ok {
				program, _, _ := strings.Cut(command, " ")
				wanted = append(wanted, program)
			}
		}
	}
	wanted = append(wanted, "unboundedctl") // which resets the host
	slices.Sort(wanted)
	for _, program := range slices.Compact(wanted) {
		if !slices.Contains(have, program) {
			report.fail("programs."+program, isMissing, fixProgram)
		}
	}
}
