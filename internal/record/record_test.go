package record

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

const fixtures = "testdata/bootstrap-v1/"

func fixtureIdentity(t *testing.T) Identity {
	t.Helper()
	data, err := os.ReadFile(fixtures + "input.json")
	if err != nil {
		t.Fatal(err)
	}
	var identity Identity
	if err := json.Unmarshal(data, &identity); err != nil {
		t.Fatal(err)
	}
	return identity
}

func TestFingerprint(t *testing.T) {
	base := fixtureIdentity(t)
	const published = "c450aef0b3255c61d169b528949df158234f16391c2a70d03548e7698976aade"
	image := func(s string) Identity { i := base; i.OCIImage = s; return i }
	for _, test := range []struct {
		name string
		a, b Identity
		same bool
	}{
		{"v of the version", base, Identity{base.MachineName, "1.34.0", base.OCIImage, base.APIServer}, true},
		{"scheme of the server", base, Identity{base.MachineName, base.KubernetesVersion, base.OCIImage, "api.example.test:6443"}, true},
		{"another version", base, Identity{base.MachineName, "1.34.1", base.OCIImage, base.APIServer}, false},
		{"another server", base, Identity{base.MachineName, base.KubernetesVersion, base.OCIImage, "https://b.example.test"}, false},
		{"http is not https", base, Identity{base.MachineName, base.KubernetesVersion, base.OCIImage, "http://api.example.test:6443"}, false},
		{"machine name is compared by itself", base, Identity{"other", base.KubernetesVersion, base.OCIImage, base.APIServer}, true},
		{"signature of an image URL", image("https://e.test/a/i.tar?sig=1"), image("https://e.test/a/i.tar?sig=2"), true},
		{"empty query", image("https://e.test/i.tar?"), image("https://e.test/i.tar"), true},
		{"slashes at the end of an image URL", image("https://e.test/i.tar//?x"), image("https://e.test/i.tar"), true},
		{"another image URL", image("https://e.test/i.tar"), image("https://e.test/j.tar"), false},
		{"question mark of a registry reference", image("e.test/a:1?x"), image("e.test/a:1?y"), false},
		{"slash of a layout", image("oci-layout:///srv/a/"), image("oci-layout:///srv/a"), false},
		{"reference that is no URL", image("https://e.test/%zz?a"), image("https://e.test/%zz?b"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if same := test.a.Fingerprint() == test.b.Fingerprint(); same != test.same {
				t.Errorf("same fingerprint = %v, want %v", same, test.same)
			}
		})
	}
	if got := base.Fingerprint(); got != published {
		t.Errorf("Fingerprint() = %s, want the published %s", got, published)
	}
}

func TestFixturesThroughStore(t *testing.T) {
	identity := fixtureIdentity(t)
	for _, phase := range []Phase{Installing, Complete, Resetting} {
		t.Run(string(phase), func(t *testing.T) {
			store, path := testStore(t)
			data, err := os.ReadFile(fixtures + string(phase) + ".json")
			if err != nil {
				t.Fatal(err)
			}
			if err := durable.Replace(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := store.Load()
			if err != nil {
				t.Fatal(err)
			}
			want := Record{
				InstallID: "00112233445566778899aabbccddeeff", MachineName: identity.MachineName,
				ConfigFingerprint: identity.Fingerprint(), Phase: phase,
			}
			if !r.equal(want) {
				t.Errorf("Load() = %+v, want %+v", r, want)
			}
			back, err := r.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(data), string(back)); diff != "" {
				t.Errorf("written again (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	good := `{"schemaVersion":1,"installID":"a","machineName":"m","configFingerprint":"f","phase":"installing"}`
	if _, err := Parse([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, old, now, want string }{
		{"newer schema", `"schemaVersion":1`, `"schemaVersion":2`, "schemaVersion is 2"},
		{"no schema", `"schemaVersion":1,`, ``, "schemaVersion is 0"},
		{"no phase", `,"phase":"installing"`, ``, "phase"},
		{"unknown phase", `"installing"`, `"done"`, "phase"},
		{"blank name", `"machineName":"m"`, `"machineName":"  "`, "machineName"},
		{"blank id", `"installID":"a"`, `"installID":""`, "installID"},
		{"no fingerprint", `"configFingerprint":"f",`, ``, "configFingerprint"},
		{"wrong type", `"installID":"a"`, `"installID":7`, "installID"},
		{"not JSON", `{`, ``, "invalid character"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse([]byte(strings.Replace(good, test.old, test.now, 1)))
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Parse() = %v, want ErrInvalid that names %q", err, test.want)
			}
		})
	}
	for n := range len(good) {
		if _, err := Parse([]byte(good[:n])); !errors.Is(err, ErrInvalid) {
			t.Errorf("Parse() of the first %d bytes = %v, want ErrInvalid", n, err)
		}
	}
}

func testStore(t *testing.T) (*Store, string) {
	t.Helper()
	root := t.TempDir()
	return Open(root), paths.At(root, paths.Record)
}

func TestStore(t *testing.T) {
	store, path := testStore(t)
	ctx := t.Context()
	if _, err := store.Load(); !errors.Is(err, ErrNone) {
		t.Fatalf("Load() without a record = %v, want ErrNone", err)
	}
	if _, err := store.Update(ctx, func(*Record) error { return nil }); !errors.Is(err, ErrNone) {
		t.Fatalf("Update() without a record = %v, want ErrNone", err)
	}
	r := New(fixtureIdentity(t))
	r.Prefix = "/opt/unbounded"
	if err := store.Create(ctx, r); err != nil {
		t.Fatal(err)
	}
	if err := store.Create(ctx, New(fixtureIdentity(t))); !errors.Is(err, ErrExists) {
		t.Errorf("second Create() = %v, want ErrExists", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode = %v, %v, want 0600", info.Mode(), err)
	}
	if len(r.InstallID) != 32 {
		t.Errorf("InstallID = %q, want 32 hex digits", r.InstallID)
	}
	same, err := store.Update(ctx, func(*Record) error { return nil })
	if err != nil || !same.equal(r) {
		t.Errorf("Update() that changes nothing = %+v, %v, want %+v", same, err, r)
	}
	if again, err := os.Stat(path); err != nil || !os.SameFile(info, again) || again.ModTime() != info.ModTime() {
		t.Errorf("Update() that changes nothing wrote %s", path)
	}
	left := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".unbounded-tmp-0123456789ab") // by a killed writer
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Update(ctx, func(r *Record) error { r.Phase = Complete; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a killed writer left is there after a write: %v", err)
	}
	if got, err := store.Load(); err != nil || got.Phase != Complete || got.InstallID != r.InstallID {
		t.Errorf("Load() = %+v, %v, want phase complete and the same installID", got, err)
	}
}

func TestUnknownFieldsAreCarriedOn(t *testing.T) {
	store, path := testStore(t)
	const newer = `{"schemaVersion":1,"installID":"a","machineName":"m","configFingerprint":"f","phase":"installing","future":{"a":[1,2]},"z":"y"}`
	if err := durable.Replace(path, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Update(t.Context(), func(r *Record) error { r.Phase = Resetting; return nil }); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatalf("%v in\n%s", err, data)
	}
	want := map[string]any{
		"schemaVersion": 1.0, "installID": "a", "machineName": "m", "configFingerprint": "f", "phase": "resetting",
		"future": map[string]any{"a": []any{1.0, 2.0}}, "z": "y",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

func TestRemove(t *testing.T) {
	store, path := testStore(t)
	if err := store.Remove(t.Context()); !errors.Is(err, ErrNone) {
		t.Errorf("Remove() without a record = %v, want ErrNone", err)
	}
	r := New(fixtureIdentity(t))
	if err := store.Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	store.syncDir = func(string) error { return syscall.EIO }
	if err := store.Remove(t.Context()); !errors.Is(err, syscall.EIO) {
		t.Errorf("Remove() with a failing fsync = %v, want EIO", err)
	}
	if got, err := store.Load(); err != nil || !got.equal(r) {
		t.Errorf("after a removal that is not durable Load() = %+v, %v, want the record back", got, err)
	}
	store.syncDir = durable.SyncDir
	if err := store.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Load(); !errors.Is(err, ErrNone) {
		t.Errorf("Load() = %v, want ErrNone", err)
	}
	if err := durable.Replace(path, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := store.Remove(t.Context()); err != nil {
		t.Errorf("Remove() of rubbish = %v", err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestRetire(t *testing.T) {
	good := New(Identity{MachineName: "m1", KubernetesVersion: "1.37.2", OCIImage: "r.test/n:1", APIServer: "https://a.test"})
	good.Prefix = "/srv/u"
	data, err := good.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	full := string(data)
	for _, test := range []struct {
		name    string
		content string
		folder  bool
		keeps   bool
	}{
		{name: "valid", content: full, keeps: true},
		{name: "with a field of a later release", content: strings.Replace(full, "{", `{"later": 1,`, 1), keeps: true},
		{name: "of another schema", content: strings.Replace(full, `"schemaVersion": 1`, `"schemaVersion": 9`, 1)},
		{name: "truncated", content: full[:len(full)/2]},
		{name: "empty", content: ""},
		{name: "absent", content: "-"},
		{name: "a folder", folder: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			store := Open(root)
			if err := os.MkdirAll(filepath.Dir(store.path), 0o755); err != nil {
				t.Fatal(err)
			}
			switch {
			case test.folder:
				err = os.Mkdir(store.path, 0o755)
			case test.content != "-":
				err = os.WriteFile(store.path, []byte(test.content), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			var first Record
			for i := range 2 { // the second finds what the first has written
				got, why, err := store.Retire(t.Context(), "/opt/x")
				if err != nil || got.Phase != Resetting {
					t.Fatalf("Retire() = %+v, %v", got, err)
				}
				if keeps := why == nil; keeps != (test.keeps || i == 1) {
					t.Errorf("Retire() says %v", why)
				}
				if test.keeps && (got.InstallID != good.InstallID || got.Prefix != "/srv/u") {
					t.Errorf("Retire() = %+v, want the installation's own", got)
				}
				if !test.keeps && (got.MachineName != "legacy-reset" || got.Prefix != "/opt/x") {
					t.Errorf("Retire() = %+v, want a synthetic one", got)
				}
				if i == 0 {
					first = got
				} else if !first.equal(got) {
					t.Errorf("the second Retire() = %+v, want %+v", got, first)
				}
			}
			loaded, err := store.Load()
			if err != nil || !loaded.equal(first) {
				t.Errorf("Load() = %+v, %v, want %+v", loaded, err, first)
			}
		})
	}
}

// A record that cannot be cut at any byte into something that keeps a reset from beginning.
func TestRetireTruncatedAnywhere(t *testing.T) {
	data, err := New(Identity{MachineName: "m1"}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for length := range len(data) {
		root := t.TempDir()
		store := Open(root)
		if err := os.MkdirAll(filepath.Dir(store.path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(store.path, data[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		if r, _, err := store.Retire(t.Context(), "/opt/x"); err != nil || r.Phase != Resetting {
			t.Fatalf("Retire() of %d bytes = %+v, %v", length, r, err)
		}
	}
}
