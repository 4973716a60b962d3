package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"unbounded/internal/paths"
	"unbounded/internal/release"
	"unbounded/units"
)

// programNames are the programs of the product, as far as its units start them, and unboundedctl.
func programNames(t *testing.T) []string {
	t.Helper()
	names, err := units.Programs()
	if err != nil {
		t.Fatal(err)
	}
	return append(names, "unboundedctl")
}

// program64 is the head of a program for arch.
func program64(arch string) string {
	machine := elf.EM_X86_64
	if arch == "arm64" {
		machine = elf.EM_AARCH64
	}
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64, Phentsize: 56, Shentsize: 64,
	}
	var out bytes.Buffer
	_ = binary.Write(&out, binary.LittleEndian, header) // a buffer takes everything
	return out.String()
}

// manifestOf is the manifest of a release for amd64.
func manifestOf(t *testing.T) string {
	t.Helper()
	m := release.Manifest{SchemaVersion: release.Schema, Version: "v1.0.0"}
	for _, name := range programNames(t) {
		m.Files = append(m.Files, release.File{
			Name: name, Kind: release.Program, Arch: "amd64", File: name + "-linux-amd64.gz", Compression: release.Gzip, Size: 100,
			SHA256: strings.Repeat("ab", 32), FileSize: 50, FileSHA256: strings.Repeat("cd", 32),
		})
	}
	data, err := m.JSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// What is printed is the document alone, the same each time; into a file it goes with mode 0600, for it may hold secrets.
func TestGenerate(t *testing.T) {
	h := newHost(t)
	h.lay("programs /bin amd64")
	h.lay("manifest /manifest.json")
	h.write("/config.json", configuration)
	run := func(args ...string) (string, string) {
		t.Helper()
		var out, said bytes.Buffer
		p := &program{in: strings.NewReader(configuration), out: &out, err: &said, root: h.root}
		if status := p.run(t.Context(), args); status != 0 {
			t.Fatalf("%v = %d: %s", args, status, said.String())
		}
		return out.String(), said.String()
	}
	released := []string{"--manifest", paths.At(h.root, "/manifest.json"), "--base-url", "https://example.test/v1/"}
	ignition := append([]string{"ignition", "--plain", "--config", paths.At(h.root, "/config.json")}, released...)
	first, said := run(ignition...)
	if second, _ := run(ignition...); first != second {
		t.Error("a second run prints something else")
	}
	if piped, _ := run(append([]string{"ignition", "--plain", "--config", "-"}, released...)...); piped != first {
		t.Error("a configuration from standard input gives another document")
	}
	if !json.Valid([]byte(first)) || !strings.Contains(first, `"https://example.test/v1/unbounded-boot-linux-amd64.gz"`) {
		t.Errorf("not a document that fetches the release's programs: %s", first)
	}
	if strings.Contains(said, "canary") {
		t.Errorf("a secret is shown: %s", said)
	}
	file := filepath.Join(t.TempDir(), "x.ign")
	if out, _ := run(append(ignition, "--output", file)...); out != "" {
		t.Errorf("--output also prints %s", out)
	}
	data, err := os.ReadFile(file)
	info, statErr := os.Stat(file)
	if err != nil || statErr != nil || string(data) != first || info.Mode().Perm() != 0o600 {
		t.Errorf("--output wrote %d bytes with %v, %v, want the document with 0600", len(data), info.Mode(), err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	run(append(ignition, "--output", link)...)
	if to, err := os.Readlink(link); err != nil || to != file {
		t.Errorf("--output to a link made it %q, %v", to, err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe") // as /dev/stdout, or a device, is no file either
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		data, _ := os.ReadFile(pipe)
		read <- string(data)
	}()
	run(append(ignition, "--output", pipe)...)
	if info, err := os.Lstat(pipe); err != nil || info.Mode()&os.ModeNamedPipe == 0 || <-read != first {
		t.Errorf("--output to a pipe made it %v, %v, or wrote something else", info.Mode(), err)
	}
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "no/folder.ign")} {
		p := &program{in: strings.NewReader(""), out: &bytes.Buffer{}, err: &bytes.Buffer{}, root: h.root}
		if status := p.run(t.Context(), append(ignition, "--output", path)); status == 0 {
			t.Errorf("--output %s succeeded", path)
		}
		if _, err := os.Stat(filepath.Dir(path)); strings.HasSuffix(path, ".ign") && err == nil {
			t.Errorf("--output made the folder of %s", path)
		}
	}
	if out, _ := run(append(ignition, "--check")...); out != "" {
		t.Errorf("--check prints %s", out)
	}
	inline, _ := run("ignition", "--config", paths.At(h.root, "/config.json"), "--binaries", paths.At(h.root, "/bin"), "--inline")
	if strings.Contains(inline, "https://") || strings.Contains(inline, `"merge"`) {
		t.Errorf("--inline fetches something: %s", inline)
	}
	measured, _ := run("butane", "--plain", "--variant", "fcos", "--config-credential", "x", "--binaries", paths.At(h.root, "/bin"), "--base-url", "https://example.test")
	if !strings.HasPrefix(measured, "variant: fcos\n") || !strings.Contains(measured, "source: https://example.test/unbounded-boot\n") {
		t.Errorf("not a Butane document that fetches measured programs: %s", measured)
	}
}

const configuration = `{
  "MachineName": "edge-17",
  "Cluster": {
    "CaCertBase64": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BPT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=",
    "ClusterDNS": "10.0.0.10", "Version": "v1.34.0"
  },
  "Kubelet": { "ApiServer": "https://api.example.test:6443", "Auth": { "BootstrapToken": "abcdef.0123456789canary" } },
  "OCIImage": "registry.example.test/node:1"
}
`
