// Package ignition makes the document that turns an image-based host into a node at its first boot: an Ignition
// configuration, or the Butane form of the same.
//
// It is a pure function: Build makes a Document of an Input and reports on it, and the document's methods write it
// down, the same bytes every time. Nothing is read, fetched or asked.
//
// On the host the document places what make install places on others: the programs in a slot below the prefix,
// documents beside them, all unit files, and the list of these that `unboundedctl uninstall` goes by; and beyond that
// the configuration of the node and the enablement of unbounded-boot.service. It leaves the message catalog out,
// whose folder is in the image.
//
// A document has two parts. The product is the same for a whole fleet; the rest is what a host is given. When it is
// written compact, the product is one compressed resource that Ignition merges (spec: ignition.config.merge): user data is
// often limited to 16 KiB, and the unit files alone are twice that.
package ignition

import (
	"maps"
	"path"
	"slices"
	"strings"

	"unbounded/internal/paths"
	"unbounded/units"
)

// Input is all that a document is made of.
type Input struct {
	Prefix   string // where programs go: absolute, clean
	Programs []Program
	Docs     []Program // pages for the operator, by file name
	Config   Config

	RootImage    string // in place of the configuration's OCIImage, if not ""
	BootComplete bool   // the system's boot-complete.target waits for the node
	Files        []File // more files for the host
}

// Program is a program of the product, or a page about it.
type Program struct {
	Name   string
	Source Source
}

// Config says where the host gets its configuration from: exactly one of these.
type Config struct {
	Inline     []byte // the configuration itself
	Source     Source // fetched by Ignition
	Credential string // the name of a systemd credential
}

// File is a file that is placed on the host.
type File struct {
	Path   string
	Mode   int
	Source Source
}

// Source is where the bytes of a file come from: Content or URL.
type Source struct {
	Content []byte
	URL     string
	Gzip    bool   // what URL gives is compressed
	SHA256  string // of the file, uncompressed, in hex; "" is not verified
}

// Document is what is placed on a host, by part.
type Document struct {
	product, host part
}

// part is some of what a document places, each sorted by name.
type part struct {
	files []File
	links []link
	units []unit
}

type link struct{ path, target string }

// paths are the files that a unit is made of.
func (u unit) paths() []string {
	var all []string
	if u.Contents != "" {
		all = append(all, paths.SystemdDir+"/"+u.Name)
	}
	for _, d := range u.DropIns {
		all = append(all, paths.SystemdDir+"/"+u.Name+".d/"+d.Name)
	}
	return all
}

const (
	slot = "slots/blue" // below the prefix; what make install fills

	credentialDropIn = "10-credential.conf"

	bootCompleteRequires = paths.SystemdDir + "/boot-complete.target.requires/"
)

// Build makes the document. It is nil when the report has errors.
func Build(in Input) (*Document, Report) {
	var report Report
	config := in.check(&report)
	if report.Failed() {
		return nil, report
	}
	rendered, err := units.Rendered(in.Prefix)
	if err != nil {
		report.fail("", err.Error(), "")
		return nil, report
	}
	in.checkPrograms(&report)
	if report.Failed() {
		return nil, report
	}
	d := new(Document)
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		d.product.units = append(d.product.units, unit{Name: name, Contents: rendered[name], Enabled: name == paths.BootUnit})
	}
	for _, p := range in.Programs {
		d.product.files = append(d.product.files, File{path.Join(in.Prefix, slot, p.Name), 0o755, p.Source})
	}
	for _, page := range in.Docs {
		d.product.files = append(d.product.files, File{path.Join(in.Prefix, "doc", page.Name), 0o644, page.Source})
	}
	d.product.links = []link{
		{paths.MultiUserWants + "/" + paths.BootUnit, paths.SystemdDir + "/" + paths.BootUnit},
		{in.Prefix + "/current", slot},
		{in.Prefix + "/last-good", slot},
	}
	d.host.files = append(d.host.files, in.Files...)
	if len(config.Content) > 0 || config.URL != "" {
		d.host.files = append(d.host.files, File{paths.Config, 0o600, config})
	}
	if in.Config.Credential != "" {
		d.host.units = []unit{{Name: paths.AdmitUnit, DropIns: []dropIn{{credentialDropIn, loadCredential(in.Config.Credential)}}}}
	}
	if in.BootComplete {
		d.host.links = []link{{bootCompleteRequires + paths.BootCompleteUnit, paths.SystemdDir + "/" + paths.BootCompleteUnit}}
	}
	d.product.files = append(d.product.files, File{in.Prefix + "/" + paths.Manifest, 0o644, Source{Content: in.manifest(d)}})
	d.product.sort()
	d.host.sort()
	if d.clashes(in.Files, &report); report.Failed() {
		return nil, report
	}
	return d, report
}

// loadCredential is the drop-in that hands a credential of the system on to admission.
func loadCredential(name string) string {
	source := paths.Credential
	if name != paths.Credential {
		source += ":" + name
	}
	return "# The configuration of the node.\n[Service]\nLoadCredential=" + source + "\n"
}

// manifest lists what the document places of the product, as make install does.
func (in Input) manifest(d *Document) []byte {
	var all []string
	for _, f := range d.product.files {
		all = append(all, f.Path)
	}
	for _, u := range slices.Concat(d.product.units, d.host.units) {
		all = append(all, u.paths()...)
	}
	all = append(all, in.Prefix+"/current", in.Prefix+"/last-good")
	for _, l := range d.host.links {
		all = append(all, l.path)
	}
	slices.Sort(all)
	return []byte(strings.Join(all, "\n") + "\n")
}

func (p *part) sort() {
	slices.SortFunc(p.files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(p.links, func(a, b link) int { return strings.Compare(a.path, b.path) })
}

// whole is both parts as one.
func (d *Document) whole() part {
	all := part{
		files: slices.Concat(d.product.files, d.host.files),
		links: slices.Concat(d.product.links, d.host.links),
		units: slices.Clone(d.product.units),
	}
	for _, u := range d.host.units {
		at := slices.IndexFunc(all.units, func(have unit) bool { return have.Name == u.Name })
		all.units[at].DropIns = u.DropIns
	}
	all.sort()
	return all
}
