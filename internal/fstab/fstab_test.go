package fstab

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/before"
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

func TestNowAndRestore(t *testing.T) {
	const line, other = "/dev/sda2 none swap sw 0 0", "/dev/sdb2 none swap sw 0 0"
	e := before.Entry{Kind: before.Line, Object: File + ":" + line, Before: before.Text(line), Ours: []before.State{before.Text(Mark + line)}}
	for _, test := range []struct {
		name, text string
		now        before.State
		want       string
	}{
		{name: "marked", text: "a\n" + Mark + line + "\n" + Mark + other + "\n", now: before.Text(Mark + line), want: "a\n" + line + "\n" + Mark + other + "\n"},
		{name: "twice, one of them marked", text: line + "\n" + Mark + line, now: before.Text(Mark + line), want: line + "\n" + line},
		{name: "as it was", text: line + "\n", now: before.Text(line), want: line + "\n"},
		{name: "gone", text: "a\n", now: before.Gone(), want: "a\n"},
		{name: "edited under the mark", text: Mark + line + " # mine\n", now: before.Gone(), want: Mark + line + " # mine\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, File)
			if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(test.text), 0o644)); err != nil {
				t.Fatal(err)
			}
			now, err := Now(root, e)
			if err != nil || !now.Same(test.now) {
				t.Errorf("Now = %v, %v, want %v", now, err, test.now)
			}
			if _, err := Restore(root, e); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil || string(got) != test.want {
				t.Errorf("restored: %q, %v, want %q", got, err, test.want)
			}
		})
	}
	if now, err := Now(t.TempDir(), e); err != nil || !now.Absent {
		t.Errorf("no file: %v, %v", now, err)
	}
}

func TestRestoreAll(t *testing.T) {
	root := t.TempDir()
	if lines, err := RestoreAll(root); lines != nil || err != nil {
		t.Errorf("no file: %v, %v", lines, err)
	}
	path := filepath.Join(root, File)
	if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("x\n"+Mark+"a\n"+Mark+"b"), 0o644)); err != nil {
		t.Fatal(err)
	}
	lines, err := RestoreAll(root)
	if diff := cmp.Diff([]string{"a", "b"}, lines); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "x\na\nb" {
		t.Errorf("file = %q, %v", got, err)
	}
}
