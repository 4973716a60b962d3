package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"unbounded/internal/exit"
	"unbounded/internal/ocitest"
)

func TestMain(m *testing.M) {
	Child()
	benchChild()
	os.Exit(m.Run())
}

// needRoot ends a test that cannot be without root: skipped on a desk, failed in CI.
func needRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		tb.Fatal("needs root, and CI must not skip it")
	}
	tb.Skip("SKIPPED: needs root")
}

// place is a folder of machines: the target, and siblings that must survive.
type place struct {
	t              testing.TB
	machines, root string
}

func newPlace(tb testing.TB) place {
	tb.Helper()
	needRoot(tb)
	dir := tb.TempDir()
	p := place{tb, filepath.Join(dir, "machines"), filepath.Join(dir, "machines", ".kube1.partial")}
	for _, sub := range []string{p.root, filepath.Join(p.machines, "kube2"), filepath.Join(dir, "outside")} {
		if err := os.MkdirAll(sub, 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	for _, name := range []string{filepath.Join(dir, "outside", "secret"), filepath.Join(p.machines, "kube2", "secret")} {
		if err := os.WriteFile(name, []byte("secret"), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return p
}

// store writes layers as blobs.
func (p place) store(layers ...ocitest.Layer) []Layer {
	p.t.Helper()
	var out []Layer
	dir := p.t.TempDir()
	for n, l := range layers {
		path := filepath.Join(dir, fmt.Sprint(n))
		if err := os.WriteFile(path, l.Stored, 0o600); err != nil {
			p.t.Fatal(err)
		}
		out = append(out, Layer{path, ocitest.Sum(l.Stored), int64(len(l.Stored)), ocitest.Sum(l.Raw)})
	}
	return out
}

func (p place) unpack(layers ...ocitest.Layer) error {
	p.t.Helper()
	_, err := Tree(p.t.(*testing.T).Context(), p.root, p.store(layers...), Options{})
	return err
}

// list describes everything below dir, one line each.
func list(tb testing.TB, dir string) []string {
	tb.Helper()
	var out []string
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		stat := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%q %v %d:%d %d", name, info.Mode(), stat.Uid, stat.Gid, info.ModTime().UnixNano())
		switch {
		case info.Mode().IsRegular():
			if first, ok := inodes[stat.Ino]; ok {
				line += " = " + first
			} else {
				inodes[stat.Ino] = name
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + ocitest.Sum(data)[:12]
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			line += " -> " + target
		case info.Mode()&fs.ModeDevice != 0:
			line += fmt.Sprintf(" dev %d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
		}
		out = append(out, line+xattrs(tb, path))
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func xattrs(tb testing.TB, path string) string {
	tb.Helper()
	buffer := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buffer)
	if err != nil {
		tb.Fatal(err)
	}
	names := strings.Split(strings.TrimRight(string(buffer[:n]), "\x00"), "\x00")
	sort.Strings(names)
	out := ""
	for _, name := range names {
		if name == "" || name == "security.selinux" {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			tb.Fatal(err)
		}
		out += fmt.Sprintf(" %s=%x", name, value[:n])
	}
	return out
}

const (
	symlink  = tar.TypeSymlink
	hardlink = tar.TypeLink
	file     = "a file"
)

func device(kind byte, name string, major, minor int64) ocitest.Entry {
	return ocitest.Entry{Header: tar.Header{Typeflag: kind, Name: name, Mode: 0o666, Devmajor: major, Devminor: minor, ModTime: time.Unix(1, 0)}}
}

func with(e ocitest.Entry, change func(*tar.Header)) ocitest.Entry {
	change(&e.Header)
	return e
}

func xattr(e ocitest.Entry, name, value string) ocitest.Entry {
	return with(e, func(h *tar.Header) { h.PAXRecords = map[string]string{"SCHILY.xattr." + name: value} })
}

// The content of a tree as lines "path kind content", sorted, without its root.
func brief(t *testing.T, dir string) []string {
	t.Helper()
	out := []string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		switch {
		case info.IsDir():
			name += "/"
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			name += " -> " + target
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name += " " + string(data)
		default:
			name += " " + info.Mode().Type().String()
		}
		out = append(out, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What archives that mean harm, and such that only look like it, come to. Whatever
// happens inside, nothing outside of the tree may change.
func TestHostile(t *testing.T) {
	type entries = []ocitest.Entry
	f := func(name string) ocitest.Entry { return ocitest.File(name, file, 0o644) }
	long := strings.Repeat("n", 255)
	deep := strings.Repeat("d/", 120)
	refused := "refused"
	for _, test := range []struct {
		name   string
		layers []entries
		want   []string // brief; nil: not looked at
		err    string
	}{
		{"absolute symlink, written through", []entries{{ocitest.Link(symlink, "a", "/outside"), f("a/x")}}, []string{"a -> /outside", "outside/", "outside/x " + file}, ""},
		{"relative symlink, written through", []entries{{ocitest.Link(symlink, "a", "../../outside"), f("a/secret")}}, []string{"a -> ../../outside", "outside/", "outside/secret " + file}, ""},
		{"the same over two layers", []entries{{ocitest.Link(symlink, "a", "../../outside")}, {f("a/secret")}}, []string{"a -> ../../outside", "outside/", "outside/secret " + file}, ""},
		{"symlink to the host's etc", []entries{{ocitest.Link(symlink, "a", "/etc"), ocitest.File("a/passwd", "mine", 0o644)}}, []string{"a -> /etc", "etc/", "etc/passwd mine"}, ""},
		{"chain of symlinks", []entries{{ocitest.Link(symlink, "a", "b"), ocitest.Link(symlink, "b", "../c"), f("a/x")}}, []string{"a -> b", "b -> ../c", "c/", "c/x " + file}, ""},
		{"symlink to proc", []entries{{ocitest.Link(symlink, "a", "/proc/self/root"), f("a/x")}}, nil, ""},
		{"symlink loop as parent", []entries{{ocitest.Link(symlink, "a", "b"), ocitest.Link(symlink, "b", "a"), f("a/x")}}, nil, "too many"},
		{"folder swapped for a symlink between layers", []entries{{ocitest.Dir("a/", 0o755), f("a/x")}, {ocitest.Link(symlink, "a", "../kube2"), ocitest.File("a/secret", "bad", 0o644)}}, []string{"a -> ../kube2", "kube2/", "kube2/secret bad"}, ""},
		{"hardlink to the host's passwd", []entries{{ocitest.Link(hardlink, "a", "../../etc/passwd")}}, []string{}, "no such file"},
		{"hardlink, absolute", []entries{{ocitest.Link(hardlink, "a", "/etc/passwd")}}, []string{}, "no such file"},
		{"hardlink through a symlink", []entries{{ocitest.Link(symlink, "l", "../../outside"), ocitest.Link(hardlink, "a", "l/secret")}}, nil, "no such file"},
		{"hardlink to a symlink, then written", []entries{{ocitest.Link(symlink, "l", "/etc/passwd"), ocitest.Link(hardlink, "a", "l"), f("a")}}, []string{"a " + file, "l -> /etc/passwd"}, ""},
		{"hardlink to itself", []entries{{ocitest.Link(hardlink, "a", "a")}}, nil, "no such file"},
		{"absolute name", []entries{{f("/abs/x")}}, []string{"abs/", "abs/x " + file}, ""},
		{"dots in a name", []entries{{f("../../../outside/secret")}}, []string{"outside/", "outside/secret " + file}, ""},
		{"dots in the middle", []entries{{f("a/../../../kube2/secret")}}, []string{"kube2/", "kube2/secret " + file}, ""},
		{"root as a symlink", []entries{{ocitest.Link(symlink, ".", "/etc"), f("x")}}, nil, "refusing to change type of root"},
		{"root as a file", []entries{{f("a/..")}}, nil, "refusing to change type of root"},
		{"root as a fifo", []entries{{device(tar.TypeFifo, "a/..", 0, 0)}}, nil, "refusing to change type of root"},
		{"root as a folder with a mode", []entries{{ocitest.Dir("./", 0o711), f("x")}}, []string{"x " + file}, ""},

		{"whiteout of a file", []entries{{f("a/x"), f("a/y")}, {f("a/.wh.x")}}, []string{"a/", "a/y " + file}, ""},
		{"whiteout of a folder", []entries{{f("a/b/x"), f("a/y")}, {f("a/.wh.b")}}, []string{"a/", "a/y " + file}, ""},
		{"whiteout of nothing", []entries{{f("a/.wh.x")}}, nil, ""},
		{"whiteout keeps what its own layer wrote", []entries{{f("a/x")}, {ocitest.File("a/x", "new", 0o644), f("a/.wh.x")}}, []string{"a/", "a/x new"}, ""},
		{"whiteout in a path with dots", []entries{{f("x")}, {f("../kube2/.wh.secret")}}, nil, ""},
		{"whiteout through a symlink", []entries{{ocitest.Link(symlink, "a", "../../outside")}, {f("a/.wh.secret")}}, []string{"a -> ../../outside"}, ""},
		{"opaque folder, filled again", []entries{{f("a/x"), f("a/y")}, {f("a/.wh..wh..opq"), ocitest.File("a/z", "new", 0o644)}}, []string{"a/", "a/z new"}, ""},
		{"opaque after what fills it", []entries{{f("a/x")}, {ocitest.File("a/z", "new", 0o644), f("a/.wh..wh..opq")}}, []string{"a/", "a/z new"}, ""},
		{"opaque over a symlink", []entries{{ocitest.Link(symlink, "a", "../../outside")}, {f("a/.wh..wh..opq")}}, []string{"a -> ../../outside"}, ""},
		{"opaque over a symlink in the tree", []entries{{f("t/x"), ocitest.Link(symlink, "a", "t")}, {f("a/.wh..wh..opq")}}, nil, ""},
		{"whiteout of no name", []entries{{f("a/x")}, {f("a/.wh.")}}, nil, refused},
		{"whiteout of a dot", []entries{{f("a/x")}, {f("a/.wh..")}}, nil, refused},
		{"whiteout of a dot at the root", []entries{{f("x")}, {f(".wh..")}}, []string{"x " + file}, refused},
		{"whiteout of dots in a folder", []entries{{f("a/x")}, {f("a/.wh...")}}, []string{"a/", "a/x " + file}, refused},
		{"whiteout of dots at the root", []entries{{f("x")}, {f(".wh...")}}, []string{"x " + file}, refused},
		{"whiteout of dots, absolute", []entries{{f("x")}, {f("/.wh...")}}, []string{"x " + file}, refused},
		{"whiteout of dots, with a dot after it", []entries{{f("x")}, {f(".wh.../.")}}, []string{"x " + file}, refused},
		{"whiteout of dots, with a slash after it", []entries{{f("x")}, {ocitest.Dir(".wh.../", 0o755)}}, []string{"x " + file}, refused},
		{"whiteout of dots, with a detour", []entries{{f("x")}, {f("a/../.wh.../b/..")}}, []string{"x " + file}, refused},
		{"whiteout of dots as a folder of something", []entries{{f("x")}, {f(".wh.../y")}}, nil, ""},
		{"whiteout of dots through a symlink", []entries{{ocitest.Link(symlink, "a", "..")}, {f("a/.wh...")}}, []string{"a -> .."}, refused},
		{"whiteout as a symlink", []entries{{f("x")}, {ocitest.Link(symlink, ".wh.x", "/etc")}}, []string{}, ""},
		{"whiteout as a hardlink", []entries{{f("x"), f("y")}, {ocitest.Link(hardlink, ".wh.x", "y")}}, []string{"y " + file}, ""},

		{"duplicates: the last one counts", []entries{{f("x"), ocitest.File("x", "second", 0o600)}}, []string{"x second"}, ""},
		{"folder to file", []entries{{f("a/b/x")}, {f("a")}}, []string{"a " + file}, ""},
		{"file to folder", []entries{{f("a")}, {ocitest.Dir("a/", 0o755), f("a/x")}}, []string{"a/", "a/x " + file}, ""},
		{"file to folder and back", []entries{{f("a")}, {ocitest.Dir("a/", 0o755), f("a/x")}, {f("a")}}, []string{"a " + file}, ""},
		{"below a file, without a folder entry", []entries{{f("a"), f("a/x")}}, nil, ""},
		{"symlink, then a folder of its name", []entries{{f("t/x"), ocitest.Link(symlink, "a", "t"), ocitest.Dir("a/", 0o755), f("a/y")}}, []string{"a/", "a/y " + file, "t/", "t/x " + file}, ""},
		{"symlink, then a file of its name", []entries{{ocitest.Link(symlink, "a", "/etc/passwd"), f("a")}}, []string{"a " + file}, ""},
		{"device nodes and fifo", []entries{{device(tar.TypeChar, "null", 1, 3), device(tar.TypeBlock, "disk", 8, 0), device(tar.TypeFifo, "fifo", 0, 0)}}, []string{"disk D---------", "fifo p---------", "null Dc---------"}, ""},
		{"write through a device node", []entries{{device(tar.TypeBlock, "disk", 8, 0), f("disk")}}, []string{"disk " + file}, ""},
		{"folder below a device node", []entries{{device(tar.TypeChar, "null", 1, 3), f("null/x")}}, nil, ""},
		{"255 byte names", []entries{{ocitest.Dir(long+"/", 0o755), f(long + "/" + long)}}, []string{long + "/", long + "/" + long + " " + file}, ""},
		{"256 byte name", []entries{{f(long + "n")}}, nil, "file name too long"},
		{"a PAX name", []entries{{f(deep + "x")}}, nil, ""},
		{"path beyond PATH_MAX", []entries{{f(strings.Repeat("dddddddddd/", 500) + "x")}}, nil, "file name too long"},
		{"a name of 200 kB", []entries{{f(strings.Repeat("dddddddddd/", 20_000) + "x")}}, nil, "file name too long"},
		{"newline in a name that fails", []entries{{ocitest.Link(hardlink, "a\nb", "c\nd")}}, nil, "no such file"},
		{"newline in a name that is refused", []entries{{f("a\nb/.wh..")}}, nil, refused},
		{"newline in a name", []entries{{f("a\nb")}}, []string{"a\nb " + file}, ""},
		{"mode 000 file and folder", []entries{{ocitest.Dir("d/", 0), ocitest.File("d/x", file, 0)}}, []string{"d/", "d/x " + file}, ""},
		{"owner beyond 32 bits", []entries{{with(f("x"), func(h *tar.Header) { h.Uid = 1<<32 + 5 })}}, []string{}, refused},
		{"owner that means unchanged", []entries{{with(f("x"), func(h *tar.Header) { h.Gid = 1<<32 - 1 })}}, []string{}, refused},
		{"attributes of a symlink", []entries{{xattr(ocitest.Link(symlink, "a", "b"), "user.x", "1")}}, []string{"a -> b"}, ""},
		{"global header", []entries{{{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "x"}}}, f("x")}}, []string{"x " + file}, ""},
		{"hardlink to a file of a lower layer", []entries{{f("x")}, {ocitest.Link(hardlink, "y", "x")}}, []string{"x " + file, "y " + file}, ""},
		{"hardlink whose folder has no entry", []entries{{f("x")}, {ocitest.Link(hardlink, "new/y", "/x")}}, []string{"new/", "new/y " + file, "x " + file}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPlace(t)
			outside := list(t, filepath.Dir(p.machines)+"/outside")
			sibling := list(t, filepath.Join(p.machines, "kube2"))
			etc := list(t, "/etc/passwd")
			var layers []ocitest.Layer
			for _, e := range test.layers {
				layers = append(layers, ocitest.GzipLayer(t, e...))
			}
			err := p.unpack(layers...)
			switch {
			case test.err == "" && err != nil:
				t.Fatalf("unpack: %v", err)
			case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
				t.Fatalf("unpack: %v, want an error with %q", err, test.err)
			case test.err == refused && exit.Of(err) != exit.Refused:
				t.Errorf("status %d, want %d", exit.Of(err), exit.Refused)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("error is more than one line: %q", err)
			}
			if test.want != nil {
				if diff := cmp.Diff(test.want, brief(t, p.root)); diff != "" {
					t.Errorf("tree (-want +got):\n%s", diff)
				}
			}
			for dir, want := range map[string][]string{
				filepath.Dir(p.machines) + "/outside": outside, filepath.Join(p.machines, "kube2"): sibling, "/etc/passwd": etc,
			} {
				if diff := cmp.Diff(want, list(t, dir)); diff != "" {
					t.Errorf("%s changed (-want +got):\n%s", dir, diff)
				}
			}
		})
	}
}

// Every attribute of a usual layer comes out as with GNU tar.
func TestSameAsTar(t *testing.T) {
	p := newPlace(t)
	owned := func(e ocitest.Entry, uid, gid int) ocitest.Entry {
		return with(e, func(h *tar.Header) { h.Uid, h.Gid = uid, gid })
	}
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	layer := ocitest.GzipLayer(t,
		ocitest.Dir("./", 0o755), ocitest.Dir("bin/", 0o755),
		owned(ocitest.File("bin/su", "su", 0o4755), 0, 0), owned(ocitest.File("bin/wall", "wall", 0o2755), 0, 5),
		owned(ocitest.File("bin/both", "x", 0o6711), 1000, 1001),
		xattr(ocitest.File("bin/ping", "ping", 0o755), "security.capability", capability),
		xattr(ocitest.File("bin/noted", "x", 0o644), "user.note", "a note"),
		ocitest.Link(hardlink, "bin/su2", "bin/su"), // before tar has left the folder and set its time
		xattr(ocitest.File("bin/trusted", "x", 0o644), "trusted.note", "\x00\x01"),
		xattr(ocitest.Dir("xdir/", 0o755), "user.note", "dir"),
		owned(ocitest.Dir("tmp/", 0o1777), 0, 0), owned(ocitest.Dir("home/", 0o750), 2097153, 4294967294),
		owned(ocitest.File("home/x", "x", 0o600), 2097153, 4294967294),
		ocitest.Link(symlink, "sbin", "usr/sbin"), ocitest.Link(symlink, "abs", "/etc/none"),
		device(tar.TypeChar, "null", 1, 3), device(tar.TypeBlock, "disk", 8, 17), device(tar.TypeFifo, "fifo", 0, 0),
		ocitest.Dir("locked/", 0), ocitest.File("locked/x", "x", 0),
		ocitest.File(strings.Repeat("l", 200), "long", 0o644), ocitest.File("ünïcode", "x", 0o644), ocitest.File("empty", "", 0o644),
		with(ocitest.File("old", "x", 0o644), func(h *tar.Header) { h.ModTime = time.Unix(-1000, 5) }),
		with(ocitest.File("zero", "x", 0o644), func(h *tar.Header) { h.ModTime = time.Unix(0, 0) }),
		ocitest.File("big", strings.Repeat("0123456789", 300_000), 0o644),
	)
	if err := p.unpack(layer); err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	command := exec.CommandContext(t.Context(), "tar", "-xzp", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--same-owner", "-C", other)
	command.Stdin = bytes.NewReader(layer.Stored)
	if out, err := command.CombinedOutput(); err != nil && !strings.Contains(string(out), "implausibly old") {
		t.Fatalf("tar: %v: %s", err, out)
	}
	want, got := list(t, other), list(t, p.root)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tree (-tar +ours):\n%s", diff)
	}
	if len(got) < 25 {
		t.Errorf("only %d entries compared", len(got))
	}
}

// How a layer is compressed shows in its bytes, whatever its media type says.
func TestKinds(t *testing.T) {
	raw := ocitest.Tar(t, ocitest.File("x", file, 0o644))
	half := len(raw) / 2
	for _, test := range []struct {
		name   string
		stored []byte
	}{
		{"gzip", ocitest.Gzip(t, raw)},
		{"gzip of several members", append(ocitest.Gzip(t, raw[:half]), ocitest.Gzip(t, raw[half:])...)},
		{"zstd", ocitest.Zstd(t, raw)},
		{"plain", raw},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPlace(t)
			if err := p.unpack(ocitest.Layer{Stored: test.stored, Raw: raw}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"x " + file}, brief(t, p.root)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A blob that is not what its name says is told apart from an image that is wrong.
func TestDamage(t *testing.T) {
	noise := make([]byte, 300_000)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(noise)
	good := ocitest.GzipLayer(t, ocitest.File("a", string(noise), 0o644), ocitest.File("b", file, 0o644))
	flipped := bytes.Clone(good.Stored)
	flipped[len(flipped)/2] ^= 1
	for _, test := range []struct {
		name    string
		stored  []byte
		corrupt bool
		change  func(*Layer)
		err     string
	}{
		{"bit flipped", flipped, true, nil, "sha256"},
		{"truncated", good.Stored[:len(good.Stored)-100], true, nil, "bytes"},
		{"empty", nil, true, nil, "bytes"},
		{"longer", append(bytes.Clone(good.Stored), 0), true, nil, "bytes"},
		{"another diff_id", good.Stored, false, func(l *Layer) { l.DiffID = ocitest.Sum(nil) }, "configuration says"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPlace(t)
			layers := p.store(good)
			if err := os.WriteFile(layers[0].Path, test.stored, 0o600); err != nil {
				t.Fatal(err)
			}
			if test.change != nil {
				test.change(&layers[0])
			}
			_, err := Tree(t.Context(), p.root, layers, Options{})
			if err == nil || !strings.Contains(err.Error(), test.err) || errors.Is(err, ErrCorrupt) != test.corrupt {
				t.Errorf("Tree = %v, corrupt %v, want an error with %q, corrupt %v", err, errors.Is(err, ErrCorrupt), test.err, test.corrupt)
			}
			if damaged, ok := errors.AsType[*CorruptError](err); test.corrupt && (!ok || damaged.Layer.SHA256 != layers[0].SHA256) {
				t.Errorf("the error does not name the layer")
			}
		})
	}
}

func TestSparse(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	sparse, err := os.Create(filepath.Join(dir, "holes"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sparse.WriteAt([]byte("end"), 5<<20); err != nil {
		t.Fatal(err)
	}
	sparse.Close()
	for _, format := range []string{"gnu", "pax"} {
		t.Run(format, func(t *testing.T) {
			p := newPlace(t)
			raw, err := exec.CommandContext(t.Context(), "tar", "-c", "--sparse", "--format="+format, "-C", dir, "holes").Output()
			if err != nil {
				t.Fatal(err)
			}
			if err := p.unpack(ocitest.Layer{Stored: raw, Raw: raw}); err != nil {
				t.Fatal(err)
			}
			want, _ := os.ReadFile(sparse.Name())
			got, err := os.ReadFile(filepath.Join(p.root, "holes"))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("content differs: %d bytes, %v", len(got), err)
			}
		})
	}
}

// The size in a header may be anything, and sums of it must not turn round.
func TestSizeOfAnything(t *testing.T) {
	x := &extraction{unasked: 1}
	err := x.space(&tar.Header{Name: "bomb", Size: 1<<63 - 1})
	if f, ok := errors.AsType[*failure](err); !ok || f.kind != full {
		t.Errorf("space = %v, want it full", err)
	}
}

// mount mounts a small tmpfs for the test.
func mount(t *testing.T, options string) string {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestFull(t *testing.T) {
	p := newPlace(t)
	zeros := strings.Repeat("\x00", 1<<20)
	var entries []ocitest.Entry
	for n := range 40 {
		entries = append(entries, ocitest.File(fmt.Sprint("f", n), zeros, 0o644))
	}
	bomb := ocitest.GzipLayer(t, entries...) // 40 MB in some 40 KB
	for _, test := range []struct {
		name    string
		options string
		reserve int64
	}{
		{"the file system says so", "size=10m", 0},
		{"the reserve is kept", "size=50m", 20 << 20},
		{"no inodes", "size=100m,nr_inodes=20", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := mount(t, test.options)
			_, err := Tree(t.Context(), dir, p.store(bomb), Options{Reserve: test.reserve})
			if !errors.Is(err, ErrFull) {
				t.Errorf("Tree = %v, want %v", err, ErrFull)
			}
		})
	}
}

// Without extended attributes in the file system, a program that needs its capabilities is refused.
func TestCapabilitiesLost(t *testing.T) {
	if !strings.Contains(readAll(t, "/proc/filesystems"), "ramfs") {
		t.Fatal("no ramfs")
	}
	needRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("ramfs", dir, "ramfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	p := newPlace(t)
	plain := ocitest.GzipLayer(t, xattr(ocitest.File("x", file, 0o755), "user.note", "y"))
	if _, err := Tree(t.Context(), dir, p.store(plain), Options{}); err != nil {
		t.Errorf("attributes that may be lost: %v", err)
	}
	capable := ocitest.GzipLayer(t, xattr(ocitest.File("ping", file, 0o755), "security.capability", "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	if _, err := Tree(t.Context(), dir, p.store(capable), Options{}); err == nil || !strings.Contains(err.Error(), "capabilities") {
		t.Errorf("Tree = %v, want a refusal", err)
	}
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestCancel(t *testing.T) {
	p := newPlace(t)
	var entries []ocitest.Entry
	for n := range 30_000 {
		entries = append(entries, ocitest.File(fmt.Sprint("f", n), "x", 0o644))
	}
	ctx, cancel := context.WithCancel(t.Context())
	layers := p.store(ocitest.GzipLayer(t, entries...))
	began := time.Now()
	_, err := Tree(ctx, p.root, layers, Options{Status: func(string, ...any) { cancel() }})
	if !errors.Is(err, context.Canceled) || time.Since(began) > 10*time.Second {
		t.Errorf("Tree = %v after %s, want it canceled at once", err, time.Since(began))
	}
}
