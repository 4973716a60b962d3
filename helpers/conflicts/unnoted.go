package main

import (
	"context"
	"os"
	"strings"

	"unbounded/internal/before"
	"unbounded/internal/dockerd"
	"unbounded/internal/dropin"
	"unbounded/internal/durable"
	"unbounded/internal/fstab"
	"unbounded/internal/hardening"
	"unbounded/internal/paths"
)

// removeUnnoted undoes, without a before-image, what shows whose it is: what is ours, should the image be lost, and what
// the public agent left, which keeps none. The rest is named with the command that undoes it.
func (g giver) removeUnnoted(ctx context.Context, stale bool) error {
	units, err := dropin.RemoveAll(g.Root)
	for _, unit := range units {
		g.Log.Changed(paths.ConditionDropIn(unit), "removed")
	}
	if err != nil {
		return err
	}
	if len(units) > 0 {
		g.Log.Notice("nobody noted which services ran before: start those that you want")
	}
	lines, err := fstab.RestoreAll(g.Root)
	if err != nil {
		return err
	}
	if g.Record.Foreign() {
		agents, removed, left, err := fstab.RestoreBackup(g.Root)
		if err != nil {
			return err
		}
		if removed {
			g.Log.Changed(fstab.Backup, "removed")
		}
		if left {
			g.Log.Notice("%s is left: %s was changed since", fstab.Backup, fstab.File)
		}
		lines = append(lines, agents...)
	}
	for _, line := range lines {
		g.Log.Changed(fstab.File+":"+line, "as it was before")
	}
	if err := g.removeHardening(); err != nil {
		return err
	}
	if g.Record.Foreign() {
		g.tellMasks()
		if err := g.tellDocker(); err != nil {
			return err
		}
	}
	if stale || len(units)+len(lines) > 0 {
		if err := g.units.Reload(ctx); err != nil {
			return err
		}
	}
	if len(lines) > 0 {
		return g.startSwap(ctx)
	}
	return nil
}

func (g giver) removeHardening() error {
	for _, file := range hardening.All() {
		now, err := before.Read(g.Root, file.Path)
		if err != nil {
			return err
		}
		switch {
		case now.Absent:
			continue
		case now.Value == file.Content:
		case g.Record.Foreign() && hardening.Agents(file.Path, now.Value):
		default:
			g.Log.Notice("%s is not as an installation made it and is left as it is", file.Path)
			continue
		}
		if _, err := durable.Remove(paths.At(g.Root, file.Path)); err != nil {
			return err
		}
		g.Log.Changed(file.Path, "removed")
	}
	return nil
}

// tellMasks names the units that the public agent masks. Nothing tells its masks from an operator's.
func (g giver) tellMasks() {
	var masked []string
	for _, unit := range dropin.Runtimes() {
		target, err := os.Readlink(paths.At(g.Root, paths.SystemdDir+"/"+unit))
		if err == nil && target == "/dev/null" {
			masked = append(masked, unit)
		}
	}
	if len(masked) > 0 {
		g.Log.Warn("%[1]s: masked, by the agent or by you: `systemctl unmask %[1]s` undoes it", strings.Join(masked, " "))
	}
}

func (g giver) tellDocker() error {
	now, err := dockerd.Now(g.Root)
	if err == nil && now.Same(before.Text(dockerd.Value)) {
		g.Log.Warn("%s says %q: %s, by the agent or by you: remove the key if docker is to write packet-filter rules",
			dockerd.File, dockerd.Key, dockerd.Value)
	}
	return err
}
