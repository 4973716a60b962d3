package before

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"unbounded/internal/exit"
)

// host is a root with a boot id.
func host(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	boot(t, root, "boot-1")
	return root
}

func boot(t *testing.T, root, id string) {
	t.Helper()
	path := filepath.Join(root, "proc/sys/kernel/random/boot_id")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(id+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, root string) *Image {
	t.Helper()
	image, err := Load(root, "test")
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func TestNote(t *testing.T) {
	saved := Entry{Sysctl, "k", Text("0"), []State{Text("1")}, "boot-1"}
	for _, test := range []struct {
		name string
		have []Entry
		now  State
		want State
		got  []Entry
	}{
		{"first change", nil, Text("0"), Text("1"), []Entry{{Sysctl, "k", Text("0"), []State{Text("1")}, "boot-2"}}},
		{"already as wanted", nil, Text("1"), Text("1"), nil},
		{"ours is in place", []Entry{saved}, Text("1"), Text("1"), []Entry{saved}},
		{"killed before the change", []Entry{saved}, Text("0"), Text("1"), []Entry{{Sysctl, "k", Text("0"), []State{Text("1")}, "boot-2"}}},
		{"the owner changed it", []Entry{saved}, Text("5"), Text("1"), []Entry{{Sysctl, "k", Text("5"), []State{Text("1")}, "boot-2"}}},
		{"the owner removed it", []Entry{saved}, Gone(), Text("1"), []Entry{{Sysctl, "k", Gone(), []State{Text("1")}, "boot-2"}}},
		{
			"another release wants another value",
			[]Entry{saved},
			Text("1"), Text("2"),
			[]Entry{{Sysctl, "k", Text("0"), []State{Text("2"), Text("1")}, "boot-1"}},
		},
		{
			"and was killed before its change",
			[]Entry{{Sysctl, "k", Text("0"), []State{Text("2"), Text("1")}, "boot-1"}},
			Text("1"), Text("2"),
			[]Entry{{Sysctl, "k", Text("0"), []State{Text("2"), Text("1")}, "boot-1"}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			image := &Image{bootID: "boot-2", entries: test.have}
			image.Note(Change{Sysctl, "k", test.now, test.want})
			if diff := cmp.Diff(test.got, image.entries); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKeepTakesWhatIsAsWanted(t *testing.T) {
	image := &Image{bootID: "boot-1"}
	image.Keep(Change{Sysctl, "k", Text("1"), Text("1")})
	if !image.Has(Sysctl, "k") {
		t.Error("a dragged value that is as we want it has no entry")
	}
}

// A kill between Save and the change, then a reboot: the image still says what was before.
func TestSaveThenKill(t *testing.T) {
	root := host(t)
	change := Change{File, "/etc/a", Gone(), Text("ours")}
	image := load(t, root)
	image.Note(change)
	if err := image.Save(); err != nil {
		t.Fatal(err)
	}
	first := mustRead(t, image.path)

	boot(t, root, "boot-2")
	image = load(t, root)
	image.Note(change)
	if err := image.Save(); err != nil {
		t.Fatal(err)
	}
	if got := mustRead(t, image.path); got != first {
		t.Errorf("the second attempt rewrote the image:\n%s", cmp.Diff(first, got))
	}
	info, err := os.Stat(image.path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode = %v, %v, want 0600", info.Mode(), err)
	}
	if got, want := image.Entries(), []Entry{{File, "/etc/a", Gone(), []State{Text("ours")}, "boot-1"}}; !cmp.Equal(got, want) {
		t.Errorf("entries = %v, want %v", got, want)
	}
}

func mustRead(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestSaveNothingWritesNothing(t *testing.T) {
	root := host(t)
	if err := load(t, root).Save(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "var")); !os.IsNotExist(err) {
		t.Errorf("stat var = %v, want it absent", err)
	}
}

func TestLoadRefuses(t *testing.T) {
	for _, test := range []struct{ name, content string }{
		{"not JSON", "{"},
		{"a newer version", `{"version": 2}`},
		{"no version", `{}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := host(t)
			path := filepath.Join(root, "var/lib/unbounded/agent/before/test.json")
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(root, "test"); err == nil {
				t.Error("Load succeeded")
			}
		})
	}
}

// What is no file is refused at once: nobody writes into that pipe.
func TestLoadRefusesWhatIsNoFile(t *testing.T) {
	for name, create := range map[string]func(path string) error{
		"folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			root := host(t)
			path := filepath.Join(root, "var/lib/unbounded/agent/before/test.json")
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := create(path); err != nil {
				t.Fatal(err)
			}
			_, err := Load(root, "test")
			if exit.Of(err) != exit.Refused || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "move it away") {
				t.Errorf("Load = %v, want a refusal that names %s and the remedy", err, path)
			}
		})
	}
}

func TestRead(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"etc", "etc/dir"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"text": "hello\n", "latin1": "caf\xe9\n"} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("text", filepath.Join(root, "etc/link")); err != nil {
		t.Fatal(err)
	}
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	for _, test := range []struct {
		path string
		want State
		fail bool
	}{
		{path: "/etc/text", want: State{Value: "hello\n", Mode: 0o640, UID: uid, GID: gid}},
		{path: "/etc/latin1", want: State{Bytes: []byte("caf\xe9\n"), Mode: 0o640, UID: uid, GID: gid}},
		{path: "/etc/link", want: State{Link: "text"}},
		{path: "/etc/absent", want: State{Absent: true}},
		{path: "/etc/a.d/b/absent", want: State{Absent: true, MissingDir: "/etc/a.d"}},
		{path: "/etc/dir", fail: true},
	} {
		t.Run(test.path, func(t *testing.T) {
			got, err := Read(root, test.path)
			if (err != nil) != test.fail {
				t.Fatalf("err = %v, want failure %v", err, test.fail)
			}
			if diff := cmp.Diff(test.want, got); diff != "" && !test.fail {
				t.Errorf("state (-want +got):\n%s", diff)
			}
		})
	}
}
