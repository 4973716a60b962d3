package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
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
		agents, err := g.restoreAgentsFstab()
		if err != nil {
			return err
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
		case g.Record.Foreign() && agentsHardening(file.Path, now.Value):
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

// agentsHardening tells whether the public agent wrote text to path, whatever its comments and line breaks: it
// has our file names, and says nothing else than our files do.
func agentsHardening(path, text string) bool {
	for _, file := range hardening.All() {
		if file.Path == path {
			return slices.Equal(words(text), words(file.Content))
		}
	}
	return false
}

// words are the words of a configuration of apt or needrestart without comments and punctuation, in their order.
func words(text string) []string {
	var words []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		line, _, _ = strings.Cut(line, "//")
		words = append(words, strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\r\n{};\"'=", r) })...)
	}
	return words
}

const agentsBackup = fstab.File + ".bak"

// restoreAgentsFstab takes the comment off the lines that the public agent put one before, which its backup proves,
// and returns them. The backup goes when the file says the same again.
func (g giver) restoreAgentsFstab() ([]string, error) {
	backup, err := os.ReadFile(paths.At(g.Root, agentsBackup))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	path := paths.At(g.Root, fstab.File)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	edited, lines := uncomment(string(text), string(backup))
	if _, err := durable.Rewrite(path, []byte(edited)); err != nil {
		return nil, err
	}
	if edited != string(backup) {
		g.Log.Notice("%s is left: %s was changed since", agentsBackup, fstab.File)
		return lines, nil
	}
	if _, err := durable.Remove(paths.At(g.Root, agentsBackup)); err != nil {
		return lines, err
	}
	g.Log.Changed(agentsBackup, "removed")
	return lines, nil
}

// uncomment takes the comment off the lines of text that say swap and have none in backup.
func uncomment(text, backup string) (changed string, lines []string) {
	originals := map[string]bool{}
	for line := range strings.Lines(backup) {
		if line = strings.TrimSuffix(line, "\n"); strings.Contains(line, "swap") && !strings.HasPrefix(strings.TrimSpace(line), "#") {
			originals[line] = true
		}
	}
	var b strings.Builder
	for have := range strings.Lines(text) {
		line, comment := strings.CutPrefix(have, "#")
		for _, line := range []string{line, strings.TrimPrefix(line, " ")} {
			if original := strings.TrimSuffix(line, "\n"); comment && originals[original] {
				have = line
				lines = append(lines, original)
				break
			}
		}
		b.WriteString(have)
	}
	return b.String(), lines
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
