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

	"unbounded/ignition"
	"unbounded/internal/exit"
	"unbounded/internal/release"
)

// programs are the programs of the product, from a release's manifest or from a folder.
func (g generator) programs() ([]ignition.Program, error) {
	switch {
	case (g.manifest == "") == (g.binaries == ""):
		return nil, misused("give one of --manifest and --binaries")
	case g.inline && (g.manifest != "" || g.baseURL != ""):
		return nil, misused("--inline goes with --binaries, and without --base-url")
	case !g.inline && g.baseURL == "":
		return nil, misused("give --base-url, where the host can fetch the programs")
	case g.manifest != "":
		return g.released()
	}
	return g.measured()
}

func (g generator) released() ([]ignition.Program, error) {
	manifest, err := release.Load(g.manifest)
	if err != nil {
		return nil, exit.As(exit.Refused, err)
	}
	files, err := manifest.Programs(g.arch)
	if err != nil {
		return nil, exit.As(exit.Refused, err)
	}
	var programs []ignition.Program
	for _, f := range files {
		programs = append(programs, ignition.Program{Name: f.Name, Source: ignition.Source{
			URL: g.url(f.File), Gzip: f.Compression == release.Gzip, SHA256: f.SHA256,
		}})
	}
	return programs, nil
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
	path, rest, found := strings.Cut(text, "=")
	words := strings.Split(rest, ",")
	if !found || path == "" || words[0] == "" {
		return ignition.File{}, misused("--file %q: write PATH=SOURCE[,mode=0644][,sha256=HEX]", text)
	}
	file := ignition.File{Path: path, Mode: 0o644}
	source, remote := words[0], strings.Contains(words[0], "://")
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		switch {
		case key == "mode":
			mode, err := strconv.ParseUint(value, 8, 9)
			if err != nil {
				return file, misused("--file %s: mode %q is not an octal number up to 0777", path, value)
			}
			file.Mode = int(mode)
		case key == "sha256" && remote:
			file.Source.SHA256 = strings.ToLower(value)
		default:
			return file, misused("--file %s: %q is not mode=0644, or, of a URL, sha256=HEX", path, word)
		}
	}
	if remote {
		file.Source.URL = source
		return file, nil
	}
	var err error
	if file.Source.Content, err = os.ReadFile(source); err != nil {
		return file, fmt.Errorf("read --file %s: %w", path, err)
	}
	return file, nil
}
