package ignition

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	butane "github.com/coreos/butane/config"
	"github.com/coreos/butane/config/common"
	"github.com/coreos/ignition/v2/config/v3_3"
	"github.com/coreos/ignition/v2/config/v3_4"
	"github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/vcontext/report"
	"github.com/google/go-cmp/cmp"

	"unbounded/internal/golden"
	"unbounded/internal/paths"
	"unbounded/units"
)

// configuration holds a token, whose end no report may show.
const configuration = `{
  "MachineName": "edge-17",
  "Cluster": {
    "CaCertBase64": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BPT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=",
    "ClusterDNS": "10.0.0.10",
    "Version": "v1.34.0"
  },
  "Kubelet": {
    "ApiServer": "https://api.example.test:6443",
    "Auth": { "BootstrapToken": "abcdef.0123456789canary" }
  },
  "OCIImage": "registry.example.test/node:1"
}
`

const hash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// programs are all that the unit files start, and unboundedctl.
func programs(source func(name string) Source) []Program {
	names, err := units.Programs()
	if err != nil {
		panic(err)
	}
	var all []Program
	for _, name := range append([]string{"unboundedctl"}, names...) {
		all = append(all, Program{name, source(name)})
	}
	return all
}

func remote(name string) Source {
	return Source{URL: "https://example.test/v1/" + name + "-linux-amd64.gz", Gzip: true, SHA256: hash}
}

func local(name string) Source { return Source{Content: []byte("\x7fELF of " + name + "\xff\n")} }

// cases are inputs that give a document.
func cases() map[string]Input {
	return map[string]Input{
		"inline configuration, remote programs": {
			Prefix: paths.DefaultRoot, Programs: programs(remote), Config: Config{Inline: []byte(configuration)},
			Docs: []Program{{"operations.md", Source{URL: "https://example.test/v1/operations.md", SHA256: hash}}},
		},
		"inline programs": {
			Prefix: paths.DefaultRoot, Programs: programs(local), Config: Config{Inline: []byte(configuration)}, RootImage: "registry.example.test/other:2",
		},
		"credential, other prefix, boot-complete": {
			Prefix: "/var/opt/unbounded", Programs: programs(remote), Config: Config{Credential: "node"}, BootComplete: true,
		},
		"credential of the usual name": {
			Prefix: paths.DefaultRoot, Programs: programs(remote), Config: Config{Credential: paths.Credential},
		},
		"configuration by URL, more files": {
			Prefix: paths.DefaultRoot, Programs: programs(remote), Config: Config{Source: Source{URL: "https://example.test/edge-17.json", SHA256: hash}},
			Files: []File{
				{"/etc/hostname", 0o644, Source{Content: []byte("edge-17\n")}},
				{"/etc/empty", 0o600, Source{}},
				{"/opt/tools/x", 0o755, Source{URL: "https://example.test/x", SHA256: hash}},
			},
		},
	}
}

func build(t *testing.T, in Input) *Document {
	t.Helper()
	d, report := Build(in)
	if d == nil {
		t.Fatalf("no document:\n%s", report)
	}
	return d
}

func write(t *testing.T, d *Document, spec string, compact bool) string {
	t.Helper()
	data, err := d.Ignition(spec, compact)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// parse gives a document as Ignition's own library reads it, and demands that it has nothing to say.
func parse(t *testing.T, spec, data string) any {
	t.Helper()
	var parsed any
	var r report.Report
	var err error
	switch spec {
	case "3.3.0":
		parsed, r, err = v3_3.Parse([]byte(data))
	case "3.4.0":
		parsed, r, err = v3_4.Parse([]byte(data))
	case "3.5.0":
		parsed, r, err = v3_5.Parse([]byte(data))
	default:
		t.Fatalf("no library for spec %s", spec)
	}
	if err != nil || len(r.Entries) > 0 {
		t.Fatalf("ignition %s: %v\n%s", spec, err, r.String())
	}
	return parsed
}

// Every form of every document is what the libraries of Ignition and Butane take, without a word, and the Butane form
// is the Ignition form.
func TestForms(t *testing.T) {
	for name, in := range cases() {
		t.Run(name, func(t *testing.T) {
			d := build(t, in)
			for _, spec := range Specs() {
				for _, compact := range []bool{true, false} {
					text := write(t, d, spec, compact)
					want := parse(t, spec, text)
					if compact {
						parse(t, spec, product(t, text))
					}
					for _, variant := range Variants() {
						form, err := d.Butane(variant, spec, compact)
						if variant == "flatcar" && spec == "3.5.0" {
							if err == nil || !strings.Contains(err.Error(), "3.3.0, 3.4.0") {
								t.Errorf("butane flatcar for 3.5.0: %v, want the specs that there are", err)
							}
							continue
						}
						if err != nil {
							t.Fatal(err)
						}
						translated, r, err := butane.TranslateBytes(form, common.TranslateBytesOptions{Raw: true, TranslateOptions: common.TranslateOptions{}})
						if err != nil || len(r.Entries) > 0 {
							t.Fatalf("butane %s %s: %v\n%s", variant, spec, err, r.String())
						}
						if diff := cmp.Diff(want, parse(t, spec, string(translated))); diff != "" {
							t.Errorf("butane %s %s, compact %v (-ignition +butane):\n%s", variant, spec, compact, diff)
						}
					}
				}
			}
		})
	}
}

// What a file holds does not matter to the Butane form: it is the Ignition form, and gives the very bytes.
func TestAnyContent(t *testing.T) {
	pieces := []string{
		"\t", "\n", "\r\n", " ", "  ", "\v", "\x00", "\x1b", "\x7f", "\x85", "\xff", "\u0085", "\u2028", "\ufeff", "\ufffd", "#", ":", ": ", "- ", "---", "...", "%", "@", "`",
		"&a", "*a", "!!int", "|", ">", "'", "\"", "\\", "{", "[", "~", "null", "true", "0644", "1e3", "=", "<<", "x", "ü", "日本", "😀", strings.Repeat("long ", 40),
	}
	for range 400 {
		var content strings.Builder
		for range rand.IntN(8) {
			content.WriteString(pieces[rand.IntN(len(pieces))])
		}
		d := &Document{host: part{files: []File{{"/etc/x", 0o644, Source{Content: []byte(content.String())}}}}}
		text := write(t, d, "3.3.0", false)
		form, err := d.Butane("fcos", "3.3.0", false)
		if err != nil {
			t.Fatal(err)
		}
		translated, r, err := butane.TranslateBytes(form, common.TranslateBytesOptions{Raw: true})
		if err != nil || len(r.Entries) > 0 {
			t.Fatalf("%q: butane: %v\n%s\n%s", content.String(), err, r.String(), form)
		}
		if diff := cmp.Diff(parse(t, "3.3.0", text), parse(t, "3.3.0", string(translated))); diff != "" {
			t.Fatalf("%q (-ignition +butane):\n%s", content.String(), diff)
		}
	}
}

// product is the document that a compact one merges.
func product(t *testing.T, text string) string {
	t.Helper()
	var file form
	if err := json.Unmarshal([]byte(text), &file); err != nil {
		t.Fatal(err)
	}
	return content(t, file.Ignition.Config.Merge[0])
}

// content is what a data URL holds.
func content(t *testing.T, r resource) string {
	t.Helper()
	encoded, ok := strings.CutPrefix(r.Source, "data:;base64,")
	data, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil {
		t.Fatalf("%q: %v", r.Source, err)
	}
	if *r.Compression == "" {
		return string(data)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(data))
	if err == nil {
		data, err = io.ReadAll(unpacked)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Compact or not, a host gets the same.
func TestCompact(t *testing.T) {
	for name, in := range cases() {
		t.Run(name, func(t *testing.T) {
			d := build(t, in)
			var plain, outer, inner form
			compact := write(t, d, "3.3.0", true)
			for text, file := range map[string]*form{write(t, d, "3.3.0", false): &plain, compact: &outer, product(t, compact): &inner} {
				if err := json.Unmarshal([]byte(text), file); err != nil {
					t.Fatal(err)
				}
			}
			placed := func(files ...*form) map[string]any {
				all := map[string]any{}
				for _, f := range files {
					if f.Storage != nil {
						for _, n := range slices.Concat(f.Storage.Files, f.Storage.Links) {
							all[n.Path] = n
						}
					}
					if f.Systemd != nil {
						for _, u := range f.Systemd.Units {
							if have, ok := all[u.Name].(unit); ok { // Ignition merges units by name
								have.DropIns = append(have.DropIns, u.DropIns...)
								u = have
							}
							all[u.Name] = u
						}
					}
				}
				return all
			}
			if diff := cmp.Diff(placed(&plain), placed(&inner, &outer)); diff != "" {
				t.Errorf("-plain +compact:\n%s", diff)
			}
		})
	}
}

// The goldens are for people: unit files that are as in units/ are left out, data URLs are written out.
func TestGolden(t *testing.T) {
	for name, in := range cases() {
		t.Run(name, func(t *testing.T) {
			var file form
			if err := json.Unmarshal([]byte(write(t, build(t, in), "3.3.0", false)), &file); err != nil {
				t.Fatal(err)
			}
			rendered, err := units.Rendered(in.Prefix)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			for _, f := range file.Storage.Files {
				fmt.Fprintf(&out, "file %s %04o overwrite=%v\n", f.Path, f.Mode, f.Overwrite)
				if !strings.HasPrefix(f.Contents.Source, "data:") {
					fmt.Fprintf(&out, "    from %s", f.Contents.Source)
					if f.Contents.Compression != nil {
						fmt.Fprintf(&out, " %s", *f.Contents.Compression)
					}
					fmt.Fprintf(&out, " %s\n", f.Contents.Verification.Hash)
				} else if strings.HasPrefix(f.Contents.Source, "data:;base64,") {
					for line := range strings.Lines(content(t, *f.Contents)) {
						fmt.Fprintf(&out, "    %q\n", line)
					}
				} else {
					fmt.Fprintf(&out, "    %s\n", f.Contents.Source)
				}
			}
			for _, l := range file.Storage.Links {
				fmt.Fprintf(&out, "link %s -> %s overwrite=%v\n", l.Path, l.Target, l.Overwrite)
			}
			for _, u := range file.Systemd.Units {
				fmt.Fprintf(&out, "unit %s as in units/: %v, enabled: %v\n", u.Name, u.Contents == rendered[u.Name], u.Enabled)
				for _, d := range u.DropIns {
					fmt.Fprintf(&out, "    %s: %q\n", d.Name, d.Contents)
				}
			}
			golden.Check(t, "testdata/"+strings.NewReplacer(" ", "-", ",", "").Replace(name)+".golden", out.String())
		})
	}
}

// Modes are integers that mean what they say (coreos/butane#156).
func TestModes(t *testing.T) {
	text := write(t, build(t, cases()["inline configuration, remote programs"]), "3.3.0", false)
	for path, mode := range map[string]int{paths.Config: 384, "/opt/unbounded/slots/blue/unbounded-boot": 493, "/opt/unbounded/manifest": 420} {
		var file struct {
			Storage struct {
				Files []struct {
					Path string
					Mode int
				}
			}
		}
		if err := json.Unmarshal([]byte(text), &file); err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(file.Storage.Files, func(f struct {
			Path string
			Mode int
		},
		) bool {
			return f.Path == path
		})
		if at < 0 || file.Storage.Files[at].Mode != mode {
			t.Errorf("%s is not there with mode %d", path, mode)
		}
	}
}

// The order in which things are given does not matter.
func TestDeterministic(t *testing.T) {
	in := cases()["configuration by URL, more files"]
	want := write(t, build(t, in), "3.3.0", true)
	for range 10 {
		in.Programs, in.Files = slices.Clone(in.Programs), slices.Clone(in.Files)
		rand.Shuffle(len(in.Programs), func(i, j int) { in.Programs[i], in.Programs[j] = in.Programs[j], in.Programs[i] })
		rand.Shuffle(len(in.Files), func(i, j int) { in.Files[i], in.Files[j] = in.Files[j], in.Files[i] })
		if have := write(t, build(t, in), "3.3.0", true); have != want {
			t.Fatalf("another order gives another document:\n%s\n%s", want, have)
		}
	}
}

// A real configuration fits into user data, with room for a larger one.
func TestSize(t *testing.T) {
	in := cases()["inline configuration, remote programs"]
	ca := make([]byte, 1100) // an RSA certificate: nothing compresses it
	for i := range ca {
		ca[i] = byte(rand.IntN(256))
	}
	pem := "-----BEGIN CERTIFICATE-----\n" + base64.StdEncoding.EncodeToString(ca) + "\n-----END CERTIFICATE-----\n"
	in.Config.Inline = []byte(strings.Replace(configuration, "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BPT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=",
		base64.StdEncoding.EncodeToString([]byte(pem)), 1))
	size := len(write(t, build(t, in), "3.3.0", true))
	t.Logf("%d bytes", size)
	if size > 12<<10 {
		t.Errorf("%d bytes: too near to the 16384 that a cloud takes", size)
	}
}
