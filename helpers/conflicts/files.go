package main

import (
	"slices"

	"unbounded/internal/dropin"
	"unbounded/internal/hardening"
	"unbounded/internal/paths"
)

// seen is what the host has, as far as it decides what it needs.
type seen struct {
	keepFirewall bool
	docker       bool
	swapUnits    []string
	hardening    []hardening.File
}

// units are those that are held back.
func (s seen) units() []string {
	units := slices.Concat(dropin.Runtimes(), dropin.Swappers(), s.swapUnits)
	if !s.keepFirewall {
		units = append(units, dropin.Firewalls()...)
	}
	return units
}

// files are those that the host needs; one without content is not to be there. Units that are not installed get
// their drop-in too: they may come later.
func (s seen) files() []hardening.File {
	var files []hardening.File
	for _, unit := range slices.Concat(dropin.Runtimes(), dropin.Swappers(), s.swapUnits) {
		files = append(files, hardening.File{Path: paths.ConditionDropIn(unit), Content: dropin.Content(unit, "")})
	}
	for _, unit := range dropin.Firewalls() {
		content := dropin.Content(unit, dropin.Firewall)
		if s.keepFirewall {
			content = "" // the configuration may have said "clean" at an earlier attempt
		}
		files = append(files, hardening.File{Path: paths.ConditionDropIn(unit), Content: content})
	}
	return append(files, s.hardening...)
}
