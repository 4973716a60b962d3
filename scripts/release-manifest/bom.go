package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// links are the modules that each program really links, as it says itself: what go.mod lists for tests alone is not there.
type links map[string]map[debug.Module]bool

func (l links) add(name string, program []byte) error {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return err
	}
	if l[name] == nil {
		l[name] = map[debug.Module]bool{}
	}
	// The standard library is a module like others, and has flaws like others.
	l[name][debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}] = true
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		l[name][debug.Module{Path: module.Path, Version: module.Version, Sum: module.Sum}] = true
	}
	return nil
}

// bom is the bill of materials. It has no serial number and no time of its own: it is a function of the release.
func (l links) bom(version string, at time.Time) ([]byte, error) {
	const product = "unbounded"
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: at.Format(time.RFC3339),
		Component: &cdx.Component{BOMRef: product, Type: cdx.ComponentTypeApplication, Name: product, Version: version},
	}
	var components []cdx.Component
	programs := slices.Sorted(maps.Keys(l))
	dependencies := []cdx.Dependency{{Ref: product, Dependencies: &programs}}
	modules := map[string]cdx.Component{}
	for _, name := range programs {
		components = append(components, cdx.Component{BOMRef: name, Type: cdx.ComponentTypeApplication, Name: name, Version: version})
		var refs []string
		for module := range l[name] {
			c, err := component(module)
			if err != nil {
				return nil, err
			}
			refs = append(refs, c.BOMRef)
			modules[c.BOMRef] = c
		}
		slices.Sort(refs)
		dependencies = append(dependencies, cdx.Dependency{Ref: name, Dependencies: &refs})
	}
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		components = append(components, modules[ref])
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return out.Bytes(), err
}

func component(module debug.Module) (cdx.Component, error) {
	purl := "pkg:golang/" + module.Path + "@" + strings.ReplaceAll(module.Version, "+", "%2B")
	c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: module.Path, Version: module.Version, PackageURL: purl}
	if module.Sum == "" {
		return c, nil
	}
	// The sum of go.sum, which is a SHA-256 over the names and hashes of the module's files, as other tools have it here.
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:"))
	if err != nil {
		return c, fmt.Errorf("the sum of %s: %w", module.Path, err)
	}
	c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(raw)}}
	return c, nil
}
