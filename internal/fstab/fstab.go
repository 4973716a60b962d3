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

// EnableAll takes the mark off every line, and returns those lines.
func EnableAll(text string) (changed string, lines []string) {
	var b strings.Builder
	for have := range strings.Lines(text) {
		if line, ok := strings.CutPrefix(have, Mark); ok {
			have = line
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
		b.WriteString(have)
	}
	return b.String(), lines
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
	return edit(root, func(text string) string {
		text, _ = Disable(text)
		return text
	})
}

// Now is how the line of e, an entry that Find's changes made, is at present.
func Now(root string, e before.Entry) (before.State, error) {
	text, err := os.ReadFile(paths.At(root, File))
	if errors.Is(err, fs.ErrNotExist) {
		return before.Gone(), nil
	}
	if err != nil {
		return before.State{}, err
	}
	is := before.Gone()
	for have := range strings.Lines(string(text)) {
		switch have = strings.TrimSuffix(have, "\n"); have {
		case Mark + e.Before.Value: // wins: the line may have been there twice
			return before.Text(have), nil
		case e.Before.Value:
			is = e.Before
		}
	}
	return is, nil
}

// Restore takes the mark off the line of e.
func Restore(root string, e before.Entry) (changed bool, err error) {
	return edit(root, func(text string) string {
		text, _ = Enable(text, e.Before.Value)
		return text
	})
}

// RestoreAll takes the mark off every line and returns those lines. A host without the file has none.
func RestoreAll(root string) (lines []string, err error) {
	_, err = edit(root, func(text string) string {
		text, lines = EnableAll(text)
		return text
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return lines, err
}

func edit(root string, how func(text string) string) (changed bool, err error) {
	path := paths.At(root, File)
	text, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	return durable.Rewrite(path, []byte(how(string(text))))
}
