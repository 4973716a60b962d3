// Command release-manifest writes what describes the files of a release: unbounded-<version>.cdx.json, which says what
// the programs are made from, manifest.json and SHA256SUMS.
//
// scripts/release runs it. It reads the files of one folder and nothing else, and writes into that folder.
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"unbounded/internal/durable"
	"unbounded/internal/release"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "release-manifest: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: release-manifest VERSION SECONDS FOLDER")
	}
	seconds, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return fmt.Errorf("the time of the release: %w", err)
	}
	return describe(args[0], time.Unix(seconds, 0).UTC(), args[2])
}

// describe writes the three files into dir, each of which names those before it.
func describe(version string, at time.Time, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	m := release.Manifest{SchemaVersion: release.Schema, Version: version}
	linked := links{}
	sums := map[string]string{}
	add := func(name string, data []byte) error {
		f, program, err := file(version, name, data)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if f.Kind == release.Program {
			if err := linked.add(f.Name, program); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		m.Files = append(m.Files, f)
		sums[name] = sum(data)
		return nil
	}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		if err := add(entry.Name(), data); err != nil {
			return err
		}
	}
	bom, err := linked.bom(version, at)
	if err != nil {
		return err
	}
	name := "unbounded-" + version + ".cdx.json"
	if err := errors.Join(durable.Replace(filepath.Join(dir, name), bom, 0o644), add(name, bom)); err != nil {
		return err
	}
	data, err := m.JSON()
	if err != nil {
		return err
	}
	sums[release.ManifestName] = sum(data)
	return errors.Join(durable.Replace(filepath.Join(dir, release.ManifestName), data, 0o644),
		durable.Replace(filepath.Join(dir, "SHA256SUMS"), list(sums), 0o644))
}

// file is what the manifest says about the file name, and the program that is in it.
func file(version, name string, data []byte) (release.File, []byte, error) {
	f := release.File{File: name, Size: int64(len(data)), SHA256: sum(data)}
	stem := "unbounded-" + version
	switch {
	case name == "install.sh":
		f.Kind = release.Script
	case name == "operations.md":
		f.Kind, f.Name = release.Document, name
	case name == stem+".cdx.json":
		f.Kind = release.SBOM
	case between(name, stem+"-linux-", ".tar.gz", &f.Arch):
		f.Kind = release.Tree
	case between(name, stem+"-", ".raw", &f.Arch):
		f.Kind = release.Extension
	case between(name, "", ".gz", &f.Name):
		program, err := gunzip(data)
		if err != nil {
			return f, nil, err
		}
		f.Kind, f.Compression = release.Program, release.Gzip
		f.Name, f.Arch, _ = strings.Cut(f.Name, "-linux-")
		f.FileSize, f.FileSHA256 = f.Size, f.SHA256
		f.Size, f.SHA256 = int64(len(program)), sum(program)
		return f, program, nil
	default:
		return f, nil, errors.New("not a file of a release")
	}
	return f, nil, nil
}

// between puts what is between prefix and suffix in name into middle.
func between(name, prefix, suffix string, middle *string) bool {
	if len(name) <= len(prefix)+len(suffix) || !strings.HasPrefix(name, prefix) || !strings.HasSuffix(name, suffix) {
		return false
	}
	*middle = name[len(prefix) : len(name)-len(suffix)]
	return true
}

func gunzip(data []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func sum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// list is what sha256sum --check reads.
func list(sums map[string]string) []byte {
	var lines bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		lines.WriteString(sums[name] + "  " + name + "\n")
	}
	return lines.Bytes()
}
