// Package docs holds what the pages in docs/ quote against the programs, and their links against the files.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../../"

// source is the text of all programs, without tests.
func source(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"cmd", "internal", "helpers"} {
		err := filepath.WalkDir(root+dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			all.Write(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

// TestMessages looks for every message that docs/operations.md quotes in the first column of its
// tables. An ellipsis, or a word in angle brackets, stands for what differs.
func TestMessages(t *testing.T) {
	page, err := os.ReadFile(root + "docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	programs := source(t)
	quoted, table := 0, false
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		table = len(cells) > 2 && (table || strings.TrimSpace(cells[1]) == "the line says")
		if !table {
			continue
		}
		for _, message := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			for _, part := range regexp.MustCompile(`…|<\w+>|; |: `).Split(message[1], -1) {
				if part = strings.Trim(part, " :"); len(part) < 6 {
					continue
				}
				quoted++
				if !strings.Contains(programs, part) {
					t.Errorf("docs/operations.md quotes %q: no program says %q", message[1], part)
				}
			}
		}
	}
	if quoted < 30 {
		t.Errorf("found %d quotations: the tables have another form than this test knows", quoted)
	}
}

// TestLinks follows the links between the pages.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob(root + "docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	for _, page := range append(pages, root+"README.md", root+"tests/README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(text), -1) {
			file, heading, _ := strings.Cut(link[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			linked, err := os.ReadFile(target)
			if err != nil {
				t.Errorf("%s: %v", page, err)
			} else if heading != "" && !headings(string(linked))[heading] {
				t.Errorf("%s: %s has no heading %q", page, target, heading)
			}
		}
	}
}

func headings(text string) map[string]bool {
	found := map[string]bool{}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		found[strings.ToLower(strings.ReplaceAll(heading[1], " ", "-"))] = true
	}
	return found
}
