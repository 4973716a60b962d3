// Package fstab takes swap areas out of a file in the format of fstab(5), and puts them back.
package fstab

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"unbounded/internal/before"
	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

// File is where the file is on a host.
const File = "/etc/fstab"

// Mark is in front of every line that was taken out; what follows it is the line as it was.
const Mark = "# unbounded: "

// Disable returns text with its swap lines marked, and those lines as they were.
func Disable(text string) (changed string, lines []string) {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if isSwap(line) {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
			b.WriteString(Mark)
		}
		b.WriteString(line)
	}
	return b.String(), lines
}

// Enable takes the mark off line, wherever it is marked, and says whether it was. It is how Disable is undone.
func Enable(text, line string) (changed string, found bool) {
	var b strings.Builder
	for have := range strings.Lines(text) {
		if strings.TrimSuffix(have, "\n") == Mark+line {
			have = strings.TrimPrefix(have, Mark)
			found = true
		}
		b.WriteString(have)
	}
	return b.String(), found
}

// isSwap looks at the type, the third field: a path or label may have the word in it too.
func isSwap(line string) bool {
	fields := strings.Fields(line)
	return len(fields) >= 3 && !strings.HasPrefix(fields[0], "#") && fields[2] == "swap"
}

// Find returns the changes that take the swap lines out, one a line. A host without the file needs none.
func Find(root string) ([]before.Change, error) {
	text, err := os.ReadFile(paths.At(root, File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var changes []before.Change
	_, lines := Disable(string(text))
	for _, line := range lines {
		changes = append(changes, before.Change{
			Kind: before.Line, Object: File + ":" + line, Now: before.Text(line), Want: before.Text(Mark + line),
		})
	}
	return changes, err
}

// Apply makes the changes that Find returned.
func Apply(root string) (changed bool, err error) {
	path := paths.At(root, File)
	text, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	edited, _ := Disable(string(text))
	return durable.Rewrite(path, []byte(edited))
}
