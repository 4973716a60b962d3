package main

import (
	"slices"

	"unbounded/internal/dropin"
	"unbounded/internal/hardening"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

// seen is what the host has, as far as it decides what it needs.
type seen struct {
	keepFirewall bool
	swapUnits    []string
	hardening    []hardening.File
	loaded       map[string]systemd.Properties // of units()
}

// units are those that are held back.
func (s seen) units() []string {
	units := slices.Concat(dropin.Runtimes(), dropin.Swappers(), s.swapUnits)
	if !s.keepFirewall {
		units = append(units, paths.Firewalls()...)
	}
	return units
}

// stale tells whether systemd does not know a drop-in that is on disk: an attempt was killed before its reload.
func (s seen) stale() bool {
	for _, p := range s.loaded {
		if dropin.Stale(p) {
			return true
		}
	}
	return false
}

// files are those that the host needs; one without content is not to be there. Units that are not installed get
// their drop-in too: they may come later.
func (s seen) files() []hardening.File {
	var files []hardening.File
	for _, unit := range slices.Concat(dropin.Runtimes(), dropin.Swappers(), s.swapUnits) {
		files = append(files, hardening.File{Path: paths.ConditionDropIn(unit), Content: dropin.Content(unit, "")})
	}
	for _, unit := range paths.Firewalls() {
		content := dropin.Content(unit, dropin.Firewall)
		if s.keepFirewall {
			content = "" // the configuration may have said "clean" at an earlier attempt
		}
		files = append(files, hardening.File{Path: paths.ConditionDropIn(unit), Content: content})
	}
	return append(files, s.hardening...)
}
