package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	aaaa = strings.Repeat("a", 64)
	bbbb = strings.Repeat("b", 64)
)

// manifest has one file of each kind.
func manifest() Manifest {
	return Manifest{SchemaVersion: Schema, Version: "v0.1.0-3-gabcdef0", Files: []File{
		{Kind: Script, File: "install.sh", Size: 9, SHA256: aaaa},
		{Name: "unbounded-boot", Kind: Program, Arch: "amd64", File: "unbounded-boot-linux-amd64.gz", Compression: Gzip, Size: 7, SHA256: aaaa, FileSize: 5, FileSHA256: bbbb},
		{Name: "unbounded-boot", Kind: Program, Arch: "arm64", File: "unbounded-boot-linux-arm64.gz", Compression: Gzip, Size: 7, SHA256: aaaa, FileSize: 5, FileSHA256: bbbb},
		{Kind: Extension, Arch: "amd64", File: "unbounded-v0.1.0-amd64.raw", Size: 4096, SHA256: aaaa},
		{Name: "unbounded-admission", Kind: Program, Arch: "amd64", File: "unbounded-z-linux-amd64.gz", Compression: Gzip, Size: 7, SHA256: aaaa, FileSize: 5, FileSHA256: bbbb},
	}}
}

func TestReadsWhatItWrites(t *testing.T) {
	want := manifest()
	shuffled := manifest()
	shuffled.Files[0], shuffled.Files[3] = shuffled.Files[3], shuffled.Files[0]
	data, err := shuffled.JSON()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), ManifestName)
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Load(JSON()) (-want +got):\n%s", diff)
	}
	if strings.Count(string(data), "fileSize") != 3 {
		t.Errorf("fileSize is not absent from what is not compressed:\n%s", data)
	}
}

func TestPrograms(t *testing.T) {
	programs, err := manifest().Programs("amd64")
	if err != nil || len(programs) != 2 || programs[0].Name != "unbounded-admission" || programs[1].Name != "unbounded-boot" {
		t.Errorf("Programs(amd64) = %v, %v, want admission and boot", programs, err)
	}
	const want = "release v0.1.0-3-gabcdef0 has no programs for riscv64, only for amd64, arm64"
	if _, err := manifest().Programs("riscv64"); err == nil || err.Error() != want {
		t.Errorf("Programs(riscv64): %v, want %s", err, want)
	}
}

func TestParse(t *testing.T) {
	const sums = `"size":1,"sha256":"AAAA"`
	for _, test := range []struct{ name, data, want string }{
		{"newer keys and kinds", `{"schemaVersion":1,"version":"v1","signed":true,"files":[{"kind":"man","file":"m","x":1,` + sums + `}]}`, ""},
		{"nothing", ``, "not a release manifest: EOF"},
		{"a page", `<html>`, "not a release manifest: invalid character '<' looking for beginning of value"},
		{"two", `{"schemaVersion":1,"version":"v1","files":[{"kind":"man","file":"m",` + sums + `}]}{}`, "not a release manifest: more follows after its end"},
		{"a list of files", `{"SHA256SUMS":[]}`, "schemaVersion: 0, this release reads 1: use the programs of the release that the manifest is from"},
		{"newer", `{"schemaVersion":2}`, "schemaVersion: 2, this release reads 1: use the programs of the release that the manifest is from"},
		{"empty", `{"schemaVersion":1}`, `version: not a word: ""; files: is empty`},
		{"folder", `{"schemaVersion":1,"version":"v1","files":[{"kind":"man","file":"../m",` + sums + `}]}`, `files[0].file: not a name without folders: "../m"`},
		{"hidden", `{"schemaVersion":1,"version":"v1","files":[{"kind":"man","file":"..",` + sums + `}]}`, `files[0].file: not a name without folders: ".."`},
		{
			"capitals", strings.ReplaceAll(`{"schemaVersion":1,"version":"v1","files":[{"kind":"man","file":"m","size":1,"sha256":"bbbb"}]}`, "bbbb", strings.ToUpper(bbbb)),
			`files[0].sha256: not 64 hexadecimal digits: "` + strings.ToUpper(bbbb) + `"`,
		},
		{"twice", `{"schemaVersion":1,"version":"v1","files":[{"kind":"man","file":"m",` + sums + `},{"kind":"man","file":"m",` + sums + `}]}`, `files[1].file: "m" is there twice`},
		{
			"a program twice", `{"schemaVersion":1,"version":"v1","files":[{"kind":"program","name":"p","arch":"amd64","file":"m",` + sums + `},{"kind":"program","name":"p","arch":"amd64","file":"n",` + sums + `}]}`,
			`files[1].name: the program p for amd64 is there twice`,
		},
		{
			"a bare program", `{"schemaVersion":1,"version":"v1","files":[{"kind":"program","file":"m"}]}`,
			`files[0].name: not the name of a program or page: ""; files[0].arch: is missing: ""; files[0].size: not the size of a file: 0; files[0].sha256: not 64 hexadecimal digits: ""`,
		},
		{
			"sizes of what is not compressed", `{"schemaVersion":1,"version":"v1","files":[{"kind":"man","file":"m","fileSize":1,"fileSha256":"x",` + sums + `}]}`,
			`files[0].fileSize: only a compressed file has one: 1; files[0].fileSha256: only a compressed file has one: "x"`,
		},
		{
			"compressed without sizes", `{"schemaVersion":1,"version":"v1","files":[{"kind":"man","file":"m","compression":"gzip",` + sums + `}]}`,
			`files[0].fileSize: not the size of a file: 0; files[0].fileSha256: not 64 hexadecimal digits: ""`,
		},
		{"another compression", `{"schemaVersion":1,"version":"v1","files":[{"kind":"man","file":"m","compression":"zstd",` + sums + `}]}`, `files[0].compression: not gzip: "zstd"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := Parse([]byte(strings.ReplaceAll(test.data, "AAAA", aaaa)))
			if err == nil && test.want == "" {
				return
			}
			if err == nil || err.Error() != test.want {
				t.Errorf("Parse = %v, %v\nwant %s", m, err, test.want)
			}
		})
	}
}
