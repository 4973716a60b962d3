//go:build host || cluster

package image_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"unbounded/tests/host"
)

const guidePath = "../../docs/image-based.md"

// guide is what docs/image-based.md says to type, in the blocks that are marked with one of these words:
//
//	workstation   where documents are made
//	host          on a host at any time
//	complete      on a host that is a node, and has been booted since
//	reset         on a host that is to be none any more
func guide(t *testing.T, mark string) []string {
	t.Helper()
	page, err := os.ReadFile(guidePath)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, block := range regexp.MustCompile("(?sm)^```sh (\\w+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		if !slices.Contains([]string{"workstation", "host", "complete", "reset"}, block[1]) {
			t.Errorf("%s: nobody runs the blocks that are marked %q", guidePath, block[1])
		}
		if block[1] == mark {
			blocks = append(blocks, block[2])
		}
	}
	if len(blocks) == 0 {
		t.Fatalf("%s has no block that is marked %q", guidePath, mark)
	}
	return blocks
}

// follow types what the guide says on a host, line by line, and gives what was answered.
func follow(t *testing.T, h interface {
	Run(t host.T, script string) host.Result
}, mark string,
) string {
	t.Helper()
	var said strings.Builder
	for _, block := range guide(t, mark) {
		for line := range strings.Lines(block) {
			result := h.Run(t, strings.TrimSpace(line))
			said.WriteString(result.Out)
			if result.Code != 0 {
				t.Errorf("%s: %s = %d: %s", guidePath, strings.TrimSpace(line), result.Code, result.Err)
			}
		}
	}
	return said.String()
}
