package main

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"unbounded/ignition"
	"unbounded/internal/exit"
	"unbounded/internal/release"
)

// artifacts adds the programs of the product, and its pages, from a release's manifest or from a folder.
func (g generator) artifacts(in *ignition.Input) (err error) {
	switch {
	case (g.manifest == "") == (g.binaries == ""):
		return misused("give one of --manifest and --binaries")
	case g.inline && (g.manifest != "" || g.baseURL != ""):
		return misused("--inline goes with --binaries, and without --base-url")
	case !g.inline && g.baseURL == "":
		return misused("give --base-url, where the host can fetch the programs")
	case !g.inline && !folder(g.baseURL):
		return misused("--base-url is not an http:// or https:// URL without query, fragment and white space")
	case g.manifest != "":
		return g.released(in)
	}
	in.Programs, err = g.measured()
	return err
}

// folder tells whether text is a URL that the names of files can be put behind.
func folder(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.ContainsAny(text, "?# \t\r\n") {
		return false
	}
	_, err = strconv.ParseUint(u.Port(), 10, 16)
	return utf8.ValidString(text) && (u.Port() == "" || err == nil)
}

func (g generator) released(in *ignition.Input) error {
	manifest, err := release.Load(g.manifest)
	if err != nil {
		return exit.As(exit.Refused, err)
	}
	programs, err := manifest.Programs(g.arch)
	if err != nil {
		return exit.As(exit.Refused, err)
	}
	for _, f := range programs {
		in.Programs = append(in.Programs, g.fetched(f))
	}
	for _, f := range manifest.Documents() {
		in.Docs = append(in.Docs, g.fetched(f))
	}
	return nil
}

func (g generator) fetched(f release.File) ignition.Program {
	return ignition.Program{Name: f.Name, Source: ignition.Source{
		URL: g.url(f.File), Gzip: f.Compression == release.Gzip, SHA256: f.SHA256,
	}}
}

func (g generator) url(file string) string {
	return strings.TrimRight(g.baseURL, "/") + "/" + url.PathEscape(file)
}

// measured are the programs in a folder: all files there that are called as ours are.
func (g generator) measured() ([]ignition.Program, error) {
	entries, err := os.ReadDir(g.binaries)
	if err != nil {
		return nil, fmt.Errorf("read the programs: %w", err)
	}
	var programs []ignition.Program
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() || !strings.HasPrefix(name, "unbounded-") && name != "unboundedctl" || strings.Contains(name, ".") {
			continue
		}
		path := filepath.Join(g.binaries, name)
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the programs: %w", err)
		}
		if err := runsOn(content, g.arch); err != nil {
			return nil, exit.As(exit.Refused, fmt.Errorf("%s: %w", path, err))
		}
		source := ignition.Source{Content: content}
		if !g.inline {
			sum := sha256.Sum256(content)
			source = ignition.Source{URL: g.url(name), SHA256: hex.EncodeToString(sum[:])}
		}
		programs = append(programs, ignition.Program{Name: name, Source: source})
	}
	return programs, nil
}

// runsOn refuses what is no program for Linux on arch: the wrong folder, a page that a proxy gave.
func runsOn(content []byte, arch string) error {
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("not a program for linux: %w", err)
	}
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	if file.Machine != machine {
		return fmt.Errorf("a program for %v, and --arch is %s", file.Machine, arch)
	}
	return nil
}

// extra reads what --file says: PATH=SOURCE[,mode=0644][,sha256=HEX].
func extra(text string) (ignition.File, error) {
	path, source, found := strings.Cut(text, "=")
	file := ignition.File{Path: path, Mode: 0o644}
	options := map[string]string{}
	for { // from the end, for a URL may have commas
		at := strings.LastIndex(source, ",")
		key, value, _ := strings.Cut(source[at+1:], "=")
		if _, twice := options[key]; at < 0 || twice || key != "mode" && key != "sha256" {
			break
		}
		options[key], source = value, source[:at]
	}
	remote := strings.Contains(source, "://")
	if !found || path == "" || source == "" {
		return file, misused("--file %q: write PATH=SOURCE[,mode=0644][,sha256=HEX]", text)
	}
	if text, given := options["mode"]; given {
		mode, err := strconv.ParseUint(text, 8, 9)
		if err != nil {
			return file, misused("--file %q: mode %q is not an octal number up to 0777", path, text)
		}
		file.Mode = int(mode)
	}
	if text, given := options["sha256"]; given {
		if !remote {
			return file, misused("--file %q: sha256 is for what is fetched", path)
		}
		file.Source.SHA256 = strings.ToLower(text)
	}
	if remote {
		file.Source.URL = source
		return file, nil
	}
	var err error
	if file.Source.Content, err = os.ReadFile(source); err != nil {
		return file, fmt.Errorf("read --file %q: %w", path, err)
	}
	return file, nil
}
