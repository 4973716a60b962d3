package fstab

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDisable(t *testing.T) {
	for _, test := range []struct {
		name  string
		text  string
		want  string
		lines []string
	}{
		{name: "empty"},
		{name: "no swap", text: "LABEL=swap /swap ext4 defaults 0 1\n", want: "LABEL=swap /swap ext4 defaults 0 1\n"},
		{
			name:  "swap among others",
			text:  "# comment swap\nUUID=1 / ext4 defaults 0 1\nUUID=2\tnone\tswap\tsw,pri=5\t0 0\n/swapfile swap swap defaults\n",
			want:  "# comment swap\nUUID=1 / ext4 defaults 0 1\n# unbounded: UUID=2\tnone\tswap\tsw,pri=5\t0 0\n# unbounded: /swapfile swap swap defaults\n",
			lines: []string{"UUID=2\tnone\tswap\tsw,pri=5\t0 0", "/swapfile swap swap defaults"},
		},
		{name: "no newline at the end", text: "  /s none swap sw", want: "# unbounded:   /s none swap sw", lines: []string{"  /s none swap sw"}},
		{name: "commented by the operator", text: "#/s none swap sw\n", want: "#/s none swap sw\n"},
		{name: "already marked", text: "# unbounded: /s none swap sw\n", want: "# unbounded: /s none swap sw\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, lines := Disable(test.text)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.lines, lines); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
			back := got
			for _, line := range lines {
				var found bool
				if back, found = Enable(back, line); !found {
					t.Errorf("Enable(%q) found nothing", line)
				}
			}
			if len(lines) > 0 && back != test.text {
				t.Errorf("enabled again: %q, want %q", back, test.text)
			}
		})
	}
}
