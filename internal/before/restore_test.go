package before

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestDecide(t *testing.T) {
	for _, test := range []struct {
		name          string
		before        State
		ours          []State
		now           State
		restore, left bool
	}{
		{name: "ours", before: Text("0"), ours: []State{Text("1")}, now: Text("1"), restore: true},
		{name: "what an older release made", before: Text("0"), ours: []State{Text("2"), Text("1")}, now: Text("1"), restore: true},
		{name: "killed before the change, or after it was restored", before: Text("0"), ours: []State{Text("1")}, now: Text("0")},
		{name: "the operator changed it since", before: Text("0"), ours: []State{Text("1")}, now: Text("5"), left: true},
		{name: "the operator removed it since", before: Text("0"), ours: []State{Text("1")}, now: Gone(), left: true},
		{name: "we made it, and he removed it", before: Gone(), ours: []State{Text("1")}, now: Gone()},
		{name: "dragged along, and as we want it", before: Text("1"), ours: []State{Text("1")}, now: Text("1"), restore: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			image := &Image{entries: []Entry{{Sysctl, "k", test.before, test.ours, "boot-1"}}}
			restore, left, err := image.Decide(func(Entry) (State, error) { return test.now, nil })
			if err != nil || len(restore) == 1 != test.restore || len(left) == 1 != test.left {
				t.Errorf("Decide = %v, %v, %v, want restore %v, left %v", restore, left, err, test.restore, test.left)
			}
		})
	}
	image := &Image{entries: make([]Entry, 1)}
	if _, _, err := image.Decide(func(Entry) (State, error) { return State{}, errors.New("cannot tell") }); err == nil {
		t.Error("a failed look is no error")
	}
}

func TestSameBoot(t *testing.T) {
	root := host(t)
	image := load(t, root)
	image.Note(Change{Unit, "docker.service", Text("active"), Text("inactive")})
	if err := image.Save(); err != nil {
		t.Fatal(err)
	}
	if !image.SameBoot(image.Entries()[0]) {
		t.Error("not the same boot at once")
	}
	boot(t, root, "boot-2")
	image = load(t, root)
	if image.SameBoot(image.Entries()[0]) {
		t.Error("still the same boot after another")
	}
	// Seen again as it was before: then that is known of this boot.
	image.Note(Change{Unit, "docker.service", Text("active"), Text("inactive")})
	if !image.SameBoot(image.Entries()[0]) {
		t.Error("seen in this boot, and not the same boot")
	}
}

func TestDiscard(t *testing.T) {
	root := host(t)
	if err := load(t, root).Discard(); err != nil {
		t.Fatalf("nothing there: %v", err)
	}
	image := load(t, root)
	image.Note(Change{Sysctl, "k", Text("0"), Text("1")})
	if err := image.Save(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := image.Discard(); err != nil {
			t.Fatal(err)
		}
		if entries := load(t, root).Entries(); len(entries) > 0 {
			t.Errorf("entries = %v, want none", entries)
		}
	}
}

// Whatever was there comes back whole, also when it is done twice.
func TestRestoreFile(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(path string) error // nil: nothing there
		path string
	}{
		{name: "absent", path: "/etc/a"},
		{name: "absent with its folders", path: "/etc/x.d/y/a"},
		{name: "link", path: "/etc/a", make: func(path string) error { return os.Symlink("elsewhere", path) }},
		{name: "no text", path: "/etc/a", make: func(path string) error { return os.WriteFile(path, []byte("caf\xe9"), 0o640) }},
		{name: "empty", path: "/etc/a", make: func(path string) error { return os.WriteFile(path, nil, 0o600) }},
		{
			name: "dressed", path: "/etc/a",
			make: func(path string) error {
				err := errors.Join(os.WriteFile(path, []byte("theirs"), 0o644), os.Chmod(path, 0o4750|os.ModeSetuid))
				if os.Geteuid() == 0 {
					err = errors.Join(err, os.Chown(path, 7, 8), os.Chmod(path, 0o750|os.ModeSetuid))
				}
				if noted := unix.Lsetxattr(path, "user.note", []byte("kept"), 0); noted != unix.ENOTSUP {
					err = errors.Join(err, noted)
				}
				return err
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := host(t)
			path := filepath.Join(root, test.path)
			if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
				t.Fatal(err)
			}
			if test.make != nil {
				if err := test.make(path); err != nil {
					t.Fatal(err)
				}
			}
			change, err := FileChange(root, test.path, "ours")
			if err != nil {
				t.Fatal(err)
			}
			image := load(t, root)
			image.Note(change)
			if _, err := ApplyFile(root, change); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := RestoreFile(root, image.Entries()[0]); err != nil {
					t.Fatal(err)
				}
				got, err := Read(root, test.path)
				if diff := cmp.Diff(change.Now, got); err != nil || diff != "" {
					t.Errorf("%v (-before +restored):\n%s", err, diff)
				}
			}
		})
	}
}

func TestRestoreFileKeepsWhatOthersPutBeside(t *testing.T) {
	root := host(t)
	if err := os.MkdirAll(filepath.Join(root, "etc/x.d/y"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"etc/x.d/y/a", "etc/x.d/other"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte("ours"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	e := Entry{Kind: File, Object: "/etc/x.d/y/a", Before: State{Absent: true, MissingDir: "/etc/x.d"}}
	if err := RestoreFile(root, e); err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]bool{"etc/x.d/y": false, "etc/x.d/other": true} {
		if _, err := os.Stat(filepath.Join(root, name)); (err == nil) != there {
			t.Errorf("%s: %v, want it there: %v", name, err, there)
		}
	}
}

// A kill between the removal of a file and that of the folder that was made for it: the next restore removes the folder.
func TestKilledBeforeTheFolder(t *testing.T) {
	for _, test := range []struct {
		name  string
		extra string
		stays bool
	}{{"empty", "", false}, {"somebody has put something there", "/etc/x.d/theirs", true}} {
		t.Run(test.name, func(t *testing.T) {
			root := host(t)
			for _, dir := range []string{"etc", "etc/x.d"} {
				if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if test.extra != "" {
				if err := os.WriteFile(filepath.Join(root, test.extra), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			entry := Entry{File, "/etc/x.d/a.conf", State{Absent: true, MissingDir: "/etc/x.d"}, []State{Text("ours")}, "boot-1"}
			image := &Image{entries: []Entry{entry}}
			restore, left, err := image.Decide(func(e Entry) (State, error) { return Read(root, e.Object) })
			if err != nil || len(restore) != 1 || len(left) != 0 {
				t.Fatalf("Decide() = %v, %v, %v, want the file to be restored", restore, left, err)
			}
			if err := RestoreFile(root, entry); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(filepath.Join(root, "etc/x.d")); (err == nil) != test.stays {
				t.Errorf("/etc/x.d: %v, want it there: %v", err, test.stays)
			}
		})
	}
}
