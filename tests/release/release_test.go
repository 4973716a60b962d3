//go:build host

package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"

	"unbounded/internal/durable"
	"unbounded/internal/release"
	"unbounded/units"
)

// A release is made twice: here, and from a copy elsewhere, by somebody with another umask, clock and taste. UNBOUNDED_RELEASE=full
// makes it for all architectures, and the second one with an empty build cache. The rest looks at the first.
func TestRelease(t *testing.T) {
	const arch = "arm64" // not this machine's: whatever runs a program that was just built fails
	arches, other := arch, []string{
		"TZ=Pacific/Kiritimati", "GOFLAGS=-tags=netgo", "GOAMD64=v3", "GZIP=-1", "LANG=de_DE.UTF-8", "TAR_OPTIONS=--format=pax", "MAKEFLAGS=-j9",
	}
	if os.Getenv("UNBOUNDED_RELEASE") == "full" {
		arches, other = "amd64 arm64", append(other, "GOCACHE="+t.TempDir())
	}
	first, second := filepath.Join(t.TempDir(), "dist"), filepath.Join(t.TempDir(), "dist")
	elsewhere := filepath.Join(strange(t), "checkout")
	other = append(other, "TMPDIR="+filepath.Dir(elsewhere), "GOFIPS140=latest", "GODEBUG=x509sha1=1")
	if err := Make(t.Context(), "../..", first, arches); err != nil {
		t.Fatal(err)
	}
	if err := Copy(t.Context(), "../..", elsewhere); err != nil {
		t.Fatal(err)
	}
	if err := Make(t.Context(), elsewhere, second, arches, other...); err != nil {
		t.Fatal(err)
	}
	files := read(t, first)
	if err := Make(t.Context(), "../..", first, arches, "PATH="+full(t)+":"+os.Getenv("PATH")); err == nil {
		t.Error("a release that could not be put into its place is none, and no error")
	}
	if diff := cmp.Diff(sums(files), sums(read(t, first))); diff != "" {
		t.Errorf("a release that failed did not leave the one before:\n%s", diff)
	}
	if diff := cmp.Diff(sums(files), sums(read(t, second))); diff != "" {
		t.Fatalf("made twice, it differs (-first +second):\n%s", diff)
	}
	m, err := release.Load(filepath.Join(first, release.ManifestName))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("manifest", func(t *testing.T) { agrees(t, m, files) })
	for arch := range strings.FieldsSeq(arches) {
		t.Run("programs for "+arch, func(t *testing.T) { static(t, m, arch, files) })
		t.Run("tree for "+arch, func(t *testing.T) { tree(t, m, arch, files["unbounded-"+Version+"-linux-"+arch+".tar.gz"]) })
		t.Run("extension for "+arch, func(t *testing.T) { extension(t, m, arch, filepath.Join(first, "unbounded-"+Version+"-"+arch+".raw")) })
	}
	t.Run("sbom", func(t *testing.T) { bom(t, m, files["unbounded-"+Version+".cdx.json"]) })
}

// strange is a folder that hands its group on, in a workspace of Go's that knows nothing of what is put there.
func strange(t *testing.T) string {
	t.Helper()
	const daemon = 1
	dir := t.TempDir()
	err := errors.Join(os.Chown(dir, 0, daemon), os.Chmod(dir, 0o755|os.ModeSetgid), os.WriteFile(filepath.Join(dir, "go.work"), []byte("go 1.26\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// full is a folder with a mv that finds no room for a release.
func full(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	const mv = "#!/bin/sh\ncase \"$*\" in *dist.new*) echo 'mv: no space left' >&2 && exit 1 ;; esac\nexec /bin/mv \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "mv"), []byte(mv), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		if files[entry.Name()], err = os.ReadFile(filepath.Join(dir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func sum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func sums(files map[string][]byte) map[string]string {
	all := map[string]string{}
	for name, data := range files {
		all[name] = sum(data)
	}
	return all
}

// agrees holds manifest and SHA256SUMS against the files.
func agrees(t *testing.T, m release.Manifest, files map[string][]byte) {
	t.Helper()
	var listed strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if name != "SHA256SUMS" {
			fmt.Fprintf(&listed, "%s  %s\n", sum(files[name]), name)
		}
	}
	if diff := cmp.Diff(listed.String(), string(files["SHA256SUMS"])); diff != "" {
		t.Errorf("SHA256SUMS (-want +got):\n%s", diff)
	}
	described := map[string]bool{release.ManifestName: true, "SHA256SUMS": true}
	kinds := map[string]int{}
	for _, f := range m.Files {
		described[f.File] = true
		kinds[f.Kind]++
		data := files[f.File]
		if f.Kind == release.Program {
			if f.FileSize != int64(len(data)) || f.FileSHA256 != sum(data) {
				t.Errorf("%s: fileSize and fileSha256 are not the file's", f.File)
			}
			data = unzip(t, data)
		}
		if f.Size != int64(len(data)) || f.SHA256 != sum(data) {
			t.Errorf("%s: size and sha256 are not those of the content", f.File)
		}
	}
	for name := range files {
		if !described[name] {
			t.Errorf("%s is not in the manifest", name)
		}
	}
	for _, kind := range []string{release.Program, release.Tree, release.Extension, release.Script, release.SBOM} {
		if kinds[kind] == 0 {
			t.Errorf("the manifest has no %s", kind)
		}
	}
}

func unzip(t *testing.T, data []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if !r.ModTime.IsZero() || r.Name != "" {
		t.Errorf("gzip holds a time (%v) or a name (%q)", r.ModTime, r.Name)
	}
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// static demands programs of arch that need neither loader nor libraries.
func static(t *testing.T, m release.Manifest, arch string, files map[string][]byte) {
	t.Helper()
	programs, err := m.Programs(arch)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	for _, f := range programs {
		program, err := elf.NewFile(bytes.NewReader(unzip(t, files[f.File])))
		if err != nil {
			t.Fatalf("%s: %v", f.File, err)
		}
		if program.Machine != want {
			t.Errorf("%s is for %v, want %v", f.File, program.Machine, want)
		}
		for _, part := range program.Progs {
			if part.Type == elf.PT_INTERP || part.Type == elf.PT_DYNAMIC {
				t.Errorf("%s is not static: it has a %v", f.File, part.Type)
			}
		}
	}
}

// want is what an installation below root consists of, with modes.
func want(t *testing.T, m release.Manifest, arch, root, unitDir, catalogDir string) map[string]string {
	t.Helper()
	programs, err := m.Programs(arch)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{
		root + "/current": "-> slots/blue", root + "/last-good": "-> slots/blue", root + "/doc/operations.md": "0644",
		root + "/doc/LICENSE": "0644", catalogDir + "/unbounded.catalog": "0644",
	}
	for _, f := range programs {
		all[root+"/slots/blue/"+f.Name] = "0755"
	}
	rendered, err := units.Rendered(root)
	if err != nil {
		t.Fatal(err)
	}
	for name := range rendered {
		all[unitDir+"/"+name] = "0644"
	}
	return all
}

// tree demands of the tar that what make install places is in it, and nothing that an unpacking on a host changes there.
func tree(t *testing.T, m release.Manifest, arch string, data []byte) {
	t.Helper()
	want := want(t, m, arch, "opt/unbounded", "etc/systemd/system", "usr/local/lib/systemd/catalog")
	want["opt/unbounded/manifest"] = "0644"
	got := map[string]string{}
	reader := tar.NewReader(bytes.NewReader(unzip(t, data)))
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Gid != 0 || header.Uname != "" || header.Gname != "" || fmt.Sprint(header.ModTime.Unix()) != epoch {
			t.Errorf("%s: owner %d:%d %s:%s, time %v", header.Name, header.Uid, header.Gid, header.Uname, header.Gname, header.ModTime)
		}
		switch header.Typeflag {
		case tar.TypeDir:
			if !strings.HasPrefix(header.Name, "opt/unbounded/") || header.Mode != 0o755 {
				t.Errorf("%s: a folder with mode %o: one of the system's, or its mode, must not change", header.Name, header.Mode)
			}
		case tar.TypeSymlink:
			got[header.Name] = "-> " + header.Linkname
		case tar.TypeReg:
			got[header.Name] = fmt.Sprintf("%04o", header.Mode)
		default:
			t.Errorf("%s: type %c", header.Name, header.Typeflag)
		}
	}
	lacks(t, want, got)
}

// lacks reports what of want is not in got. There may be more pages and drop-ins than this test knows.
func lacks(t *testing.T, want, got map[string]string) {
	t.Helper()
	for name, mode := range want {
		if got[name] != mode {
			t.Errorf("%s: %q, want %q", name, got[name], mode)
		}
	}
	for name, mode := range got {
		if mode == "0755" && want[name] == "" || mode != "0755" && mode != "0644" && !strings.HasPrefix(mode, "-> ") {
			t.Errorf("%s: %q was not expected", name, mode)
		}
	}
}

// extension looks into the image: it holds what belongs below /usr, without anything by which it can be taken off in pieces.
func extension(t *testing.T, m release.Manifest, arch, image string) {
	t.Helper()
	const release, unitDir = "usr/lib/extension-release.d/extension-release.unbounded", "usr/lib/systemd/system"
	want := want(t, m, arch, "usr/lib/unbounded", unitDir, "usr/lib/systemd/catalog")
	want[release], want[unitDir+"/unbounded-autostart.target"], want[unitDir+"/multi-user.target.d/10-unbounded.conf"] = "0644", "0644", "0644"
	want["usr/lib/unbounded/doc/systemd-sysext.conf"] = "0644"
	dir := filepath.Join(t.TempDir(), "tree")
	Unpack(t, image, dir)
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, dir+"/")
		if fmt.Sprint(info.ModTime().Unix()) != epoch || !durable.Owned(info) {
			t.Errorf("%s: time %v, owned by root: %v", name, info.ModTime(), durable.Owned(info))
		}
		switch {
		case info.IsDir():
			if info.Mode().Perm() != 0o755 {
				t.Errorf("%s: mode %v", name, info.Mode())
			}
		case info.Mode().IsRegular():
			got[name] = fmt.Sprintf("%04o", info.Mode().Perm())
		default:
			target, err := os.Readlink(path)
			got[name] = "-> " + target
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	lacks(t, want, got)
	if got["usr/lib/unbounded/manifest"] != "" {
		t.Error("the image has a manifest: uninstall would take it off in pieces")
	}
	text, err := os.ReadFile(filepath.Join(dir, release))
	systemdArch := map[string]string{"amd64": "x86-64", "arm64": "arm64"}[arch]
	if line := "ID=_any\nEXTENSION_RELOAD_MANAGER=1\nARCHITECTURE=" + systemdArch + "\n"; err != nil || string(text) != line {
		t.Errorf("extension-release: %q, %v, want %q", text, err, line)
	}
	if text, err := os.ReadFile(filepath.Join(dir, unitDir, "unbounded-boot.service")); err != nil || !strings.Contains(string(text), "ExecStart=/usr/lib/unbounded/current/") {
		t.Errorf("unbounded-boot.service does not start the image's programs: %v\n%s", err, text)
	}
}

// bom demands that the list has what programs link, and only that.
func bom(t *testing.T, m release.Manifest, data []byte) {
	t.Helper()
	var list cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(data), cdx.BOMFileFormatJSON).Decode(&list); err != nil {
		t.Fatal(err)
	}
	if list.SerialNumber != "" || list.Metadata.Timestamp != "2023-11-14T22:13:20Z" || list.Metadata.Component.Version != Version {
		t.Errorf("serial number %q, time %s, version %s", list.SerialNumber, list.Metadata.Timestamp, list.Metadata.Component.Version)
	}
	links := map[string]string{}
	for _, d := range *list.Dependencies {
		links[d.Ref] = strings.Join(*d.Dependencies, " ")
	}
	for _, f := range m.Files {
		if f.Kind == release.Program && !strings.Contains(links[f.Name], "pkg:golang/std@") {
			t.Errorf("%s links %q", f.Name, links[f.Name])
		}
	}
	if !strings.Contains(links["unbounded-join"], "pkg:golang/k8s.io/client-go@") || strings.Contains(links["unbounded-boot"], "k8s.io") {
		t.Errorf("unbounded-join links %s\nunbounded-boot links %s", links["unbounded-join"], links["unbounded-boot"])
	}
	if strings.Contains(string(data), "github.com/google/go-cmp") {
		t.Error("the list has what tests link")
	}
}
