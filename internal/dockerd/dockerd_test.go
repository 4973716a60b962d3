package dockerd

import (
	"os"
	"path/filepath"
	"testing"

	"unbounded/internal/before"
)

func TestFindApply(t *testing.T) {
	for _, test := range []struct {
		name string
		data string // empty: no file
		kind before.Kind
		want string
	}{
		{"no file", "", before.File, "{\n  \"iptables\": false\n}\n"},
		{"other keys", `{"debug": true}`, before.Key, "{\n  \"iptables\": false,\"debug\": true}"},
		{"docker's default", `{"iptables": true}`, before.Key, `{"iptables": false}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, File)
			if test.data != "" {
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(test.data), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			change, err := Find(root)
			if err != nil || change.Kind != test.kind || !change.Needed() {
				t.Fatalf("Find = %+v, %v, want a needed change of kind %s", change, err, test.kind)
			}
			if test.kind == before.File {
				_, err = before.ApplyFile(root, change)
			} else {
				_, err = Apply(root)
			}
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil || string(data) != test.want {
				t.Errorf("the file is %q, %v, want %q", data, err, test.want)
			}
			if change, err := Find(root); err != nil || change.Needed() {
				t.Errorf("again: Find = %+v, %v, want nothing needed", change, err)
			}
		})
	}
}

func TestFindRefuses(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, File)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if change, err := Find(root); err == nil {
		t.Errorf("Find = %+v", change)
	}
}
