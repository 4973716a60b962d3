package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"unbounded/ignition"
	"unbounded/internal/config"
	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/paths"
)

const generateUsage = `usage: unboundedctl ignition|butane [OPTION...]

Prints the document that makes an image-based host a node at its first boot. Standard error has what is
to be said about it, with the path into what was given, and its size.

the configuration of the node, one of:
  --config FILE             goes into the document, mode 0600 (- is standard input)
  --config-credential NAME  the host has it as this systemd credential (usual name: unbounded.config)
  --config-url URL          fetched at the first boot; with --config-sha256 HEX verified

the programs, one of:
  --manifest FILE --base-url URL  of a release: fetched from URL/<file>, verified
  --binaries DIR --base-url URL   measured here, fetched from URL/<program>, verified
  --binaries DIR --inline         in the document itself, for trials: some 50 MB

about the host:
  --arch ARCH         amd64 (default) or arm64
  --prefix DIR        where the programs go (default /opt/unbounded)
  --root-image REF    the machine's image, in place of OCIImage in FILE
  --boot-complete     the system's boot-complete.target waits for the node
  --file PATH=SOURCE[,mode=0644][,sha256=HEX]
                      one more file on the host, from here or a URL; may be given again

about the document:
  --spec VERSION      of Ignition: 3.3.0 (default), 3.4.0, 3.5.0
  --variant VARIANT   of Butane: flatcar (default) or fcos
  --plain             every unit and program in the open; without it, and without --inline, they are
                      one compressed resource, so that the document fits into user data
  --max-size BYTES    warn above it (default 16384; 0 never)
  --check             say what is to be said, and print no document
  --strict            take a warning for an error
  --output FILE       write it there, mode 0600
`

// generator is what a document is asked for.
type generator struct {
	*program
	butane bool

	config, credential, configURL, configSHA256 string
	manifest, binaries, baseURL                 string
	inline, plain, check, strict, bootComplete  bool
	arch, prefix, image, spec, variant, output  string
	maxSize                                     int
	files                                       []string
}

// generate prints an Ignition or Butane document.
func (p *program) generate(name string, args []string) error {
	g := generator{program: p, butane: name == "butane"}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&g.config, "config", "", "")
	flags.StringVar(&g.credential, "config-credential", "", "")
	flags.StringVar(&g.configURL, "config-url", "", "")
	flags.StringVar(&g.configSHA256, "config-sha256", "", "")
	flags.StringVar(&g.manifest, "manifest", "", "")
	flags.StringVar(&g.binaries, "binaries", "", "")
	flags.StringVar(&g.baseURL, "base-url", "", "")
	flags.BoolVar(&g.inline, "inline", false, "")
	flags.BoolVar(&g.plain, "plain", false, "")
	flags.BoolVar(&g.check, "check", false, "")
	flags.BoolVar(&g.strict, "strict", false, "")
	flags.BoolVar(&g.bootComplete, "boot-complete", false, "")
	flags.StringVar(&g.arch, "arch", "amd64", "")
	flags.StringVar(&g.prefix, "prefix", paths.DefaultRoot, "")
	flags.StringVar(&g.image, "root-image", "", "")
	flags.StringVar(&g.spec, "spec", ignition.Specs()[0], "")
	flags.StringVar(&g.variant, "variant", "flatcar", "")
	flags.StringVar(&g.output, "output", "", "")
	flags.IntVar(&g.maxSize, "max-size", userData, "")
	flags.Func("file", "", func(text string) error {
		g.files = append(g.files, text)
		return nil
	})
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		p.say("%s", generateUsage)
		return nil
	case err != nil:
		return misused("%s: %w", name, err)
	case flags.NArg() > 0:
		return misused("%s takes no argument %q", name, flags.Arg(0))
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if given["variant"] && !g.butane {
		return misused("--variant is Butane's: say `unboundedctl butane`")
	}
	return g.run()
}

// userData is what EC2 takes as user data, the least of the large clouds.
const userData = 16 << 10

// misused is an error of the command line.
func misused(format string, args ...any) error {
	return exit.As(exit.Usage, fmt.Errorf(format+"; see `unboundedctl ignition --help`", args...))
}

func (g generator) run() error {
	switch {
	case g.maxSize < 0:
		return misused("--max-size %d is less than nothing", g.maxSize)
	case g.check && g.output != "":
		return misused("--check makes no document, so there is nothing for --output")
	}
	in, err := g.input()
	if err != nil {
		return err
	}
	document, report := ignition.Build(in)
	if document == nil {
		return g.refuse(report)
	}
	compact := !g.plain && !g.inline
	written, err := document.Ignition(g.spec, compact)
	if err != nil {
		return exit.As(exit.Usage, err)
	}
	size := len(written)
	report.Size(size, g.maxSize)
	form := "ignition " + g.spec
	if g.butane {
		if written, err = document.Butane(g.variant, g.spec, compact); err != nil {
			return exit.As(exit.Usage, err)
		}
		form = fmt.Sprintf("butane %s, ignition %s when translated", g.variant, g.spec)
	}
	if g.strict && len(report) > 0 {
		return g.refuse(report)
	}
	g.complain("%s%s: %d bytes\n", report, form, size)
	switch {
	case g.check:
		return nil
	case g.output != "":
		return write(g.output, written)
	}
	_, err = io.Copy(g.out, bytes.NewReader(written))
	return err
}

// write makes the file path, or replaces what a link there leads to. What is no regular file, /dev/stdout for one, is
// written to and stays what it is.
func write(path string, data []byte) error {
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			return fmt.Errorf("write the document: %w", err)
		}
		return durable.Replace(path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	info, err := os.Stat(target)
	switch {
	case err != nil:
		return fmt.Errorf("write the document: %w", err)
	case info.IsDir():
		return misused("--output %s is a folder: name a file", path)
	case info.Mode().IsRegular():
		return durable.Replace(target, data, 0o600)
	}
	file, err := os.OpenFile(target, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}

// refuse prints a report and ends with its status.
func (g generator) refuse(report ignition.Report) error {
	g.complain("%s", report)
	what := "errors"
	if !report.Failed() {
		what = "warnings, and --strict"
	}
	return exit.As(exit.Refused, fmt.Errorf("no document was made: %s", what))
}

// input reads all that the options name.
func (g generator) input() (ignition.Input, error) {
	in := ignition.Input{Prefix: g.prefix, RootImage: g.image, BootComplete: g.bootComplete}
	if g.arch != "amd64" && g.arch != "arm64" {
		return in, misused("--arch %s is not known: amd64 or arm64", g.arch)
	}
	var err error
	if in.Config, err = g.configuration(); err != nil {
		return in, err
	}
	if err := g.artifacts(&in); err != nil {
		return in, err
	}
	for _, text := range g.files {
		file, err := extra(text)
		if err != nil {
			return in, err
		}
		in.Files = append(in.Files, file)
	}
	return in, nil
}

func (g generator) configuration() (c ignition.Config, err error) {
	c.Credential = g.credential
	c.Source = ignition.Source{URL: g.configURL, SHA256: strings.ToLower(g.configSHA256)}
	if g.configSHA256 != "" && g.configURL == "" {
		return c, misused("--config-sha256 goes with --config-url")
	}
	if g.config == "" {
		return c, nil
	}
	from := g.in
	if g.config != "-" {
		file, err := os.Open(g.config)
		if err != nil {
			return c, fmt.Errorf("read the configuration: %w", err)
		}
		defer file.Close()
		from = file
	}
	c.Inline, err = io.ReadAll(io.LimitReader(from, config.MaxSize+1))
	if err != nil {
		return c, fmt.Errorf("read the configuration: %w", err)
	}
	if c.Inline == nil { // an empty one is one too
		c.Inline = []byte{}
	}
	return c, nil
}
