package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"unbounded/internal/config"
	"unbounded/internal/installed"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

// manager is what systemd is asked.
type manager interface {
	Properties(ctx context.Context, unit string) (systemd.Properties, error)
}

// verification looks at one host.
type verification struct {
	root     string
	prefix   string
	host     manager
	inner    func(ctx context.Context, slot string) (manager, func(), error)
	findings []string
}

func verify(ctx context.Context, env *stage.Env) error {
	host, err := systemd.Connect(ctx)
	if err != nil {
		return err
	}
	defer host.Close()
	v := &verification{root: env.Root, prefix: env.Record.Root(), host: host}
	v.inner = func(ctx context.Context, slot string) (manager, func(), error) {
		inner, err := host.Inner(ctx, slot)
		if err != nil {
			return nil, nil, err
		}
		return inner, inner.Close, nil
	}
	return v.run(ctx)
}

// run returns everything that is not as it should be, on one line.
func (v *verification) run(ctx context.Context) error {
	v.file(paths.Complete, 0o600, true)
	v.findings = append(v.findings, installed.Findings(v.root, v.prefix)...)
	if slot, err := v.slot(); err != nil {
		v.find("%v", err)
	} else {
		v.file(paths.Nspawn(slot), 0o644, false)
		v.file(paths.DropInFile(slot), 0o644, false)
		v.applied(slot)
		v.machine(ctx, slot)
	}
	if len(v.findings) == 0 {
		return nil
	}
	return fmt.Errorf("this host is not what its install record claims: %s", strings.Join(v.findings, "; "))
}

func (v *verification) find(format string, args ...any) {
	v.findings = append(v.findings, fmt.Sprintf(format, args...))
}

func (v *verification) at(path string) string { return paths.At(v.root, path) }

// slot is where the node runs. Hosts of the public agent have no marker: the first applied configuration counts.
func (v *verification) slot() (string, error) {
	var marked []string
	for _, slot := range paths.Slots() {
		if _, err := os.Lstat(v.at(paths.Active(slot))); err == nil {
			marked = append(marked, slot)
		}
	}
	switch len(marked) {
	case 1:
		return marked[0], nil
	case 2:
		return "", fmt.Errorf("both %s and %s are there: only one machine can be the node", paths.Active(marked[0]), paths.Active(marked[1]))
	}
	for _, slot := range paths.Slots() {
		if _, err := os.Lstat(v.at(paths.Applied(slot))); err == nil {
			return slot, nil
		}
	}
	return "", fmt.Errorf("neither %s nor an applied configuration says where the node runs", paths.Active("*"))
}

// file demands a regular file of root with exactly mode, with something in it unless it may be empty.
func (v *verification) file(path string, mode fs.FileMode, empty bool) bool {
	wrong := installed.File(v.root, path, mode, empty)
	if wrong != "" {
		v.find("%s", wrong)
	}
	return wrong == ""
}

// applied checks what the node was built from, and its checksum.
func (v *verification) applied(slot string) {
	path := paths.Applied(slot)
	if !v.file(path, 0o600, false) {
		return
	}
	data, err := os.ReadFile(v.at(path))
	if err != nil {
		v.find("%v", err)
		return
	}
	if _, err := config.Parse(data, config.ReadHost(v.root)); err != nil {
		v.find("%s cannot be used: %v", path, err)
	}
	if !v.file(path+".sha256", 0o600, false) {
		return
	}
	have, err := os.ReadFile(v.at(path + ".sha256"))
	sum := sha256.Sum256(data)
	if err != nil || strings.TrimSpace(string(have)) != hex.EncodeToString(sum[:]) {
		v.find("%s.sha256 is not the checksum of %s", path, path)
	}
}

// machine checks that the slot starts at boot, runs, and alone, and its services with it.
func (v *verification) machine(ctx context.Context, slot string) {
	for _, other := range paths.Slots() {
		unit, err := v.host.Properties(ctx, paths.MachineUnit(other))
		switch {
		case err != nil:
			v.find("%v", err)
		case other != slot && unit.Runs():
			v.find("%s is %s beside %s", paths.MachineUnit(other), unit.ActiveState, paths.MachineUnit(slot))
		case other == slot && unit.UnitFileState != "enabled":
			v.find("%s is not enabled (%q): it would not start at boot", paths.MachineUnit(slot), unit.UnitFileState)
		}
		if other == slot && err == nil && unit.ActiveState != "active" {
			v.find("%s is %s, want active: see `journalctl -b -u %s`", paths.MachineUnit(slot), unit.ActiveState, paths.MachineUnit(slot))
			return
		}
	}
	inner, done, err := v.inner(ctx, slot)
	if err != nil {
		v.find("%v", err)
		return
	}
	defer done()
	for _, name := range []string{paths.ContainerdUnit, paths.KubeletUnit} {
		unit, err := inner.Properties(ctx, name)
		if err != nil {
			v.find("%v", err)
		} else if unit.ActiveState != "active" {
			v.find("%s in %s is %s, want active: see `journalctl -M %s -u %s`", name, slot, unit.ActiveState, slot, name)
		}
	}
}
