package fstab

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

// Backup is what the public agent keeps of the file before it comments lines out.
const Backup = File + ".bak"

// RestoreBackup takes the comment off the lines that the public agent put one before, which its backup proves, and
// returns them. The backup is removed when the file says the same again; otherwise it is left.
func RestoreBackup(root string) (lines []string, removed, left bool, err error) {
	backup, err := os.ReadFile(paths.At(root, Backup))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, false, nil
	}
	if err != nil {
		return nil, false, false, err
	}
	edited := ""
	_, err = edit(root, func(text string) string {
		edited, lines = uncomment(text, string(backup))
		return edited
	})
	if err != nil || edited != string(backup) {
		return lines, false, true, err
	}
	removed, err = durable.Remove(paths.At(root, Backup))
	return lines, removed, false, err
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
