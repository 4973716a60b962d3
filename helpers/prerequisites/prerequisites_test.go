package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/exit"
	"unbounded/internal/journal"
	"unbounded/internal/packages"
	"unbounded/internal/stage"
)

// host is a root that has every need but those named.
func host(t *testing.T, without ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, n := range packages.Needs() {
		there := true
		for _, name := range without {
			there = there && n.Name != name
		}
		if there {
			provide(t, root, n)
		}
	}
	return root
}

func provide(t *testing.T, root string, n packages.Need) {
	t.Helper()
	path := filepath.Join(root, "usr/bin", n.Name)
	if len(n.Files) > 0 {
		path = filepath.Join(root, n.Files[0])
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestEnsure(t *testing.T) {
	for _, test := range []struct {
		name     string
		without  []string
		manager  string
		readOnly bool
		broken   error // of the installation
		useless  bool  // it provides nothing
		calls    []string
		want     string // in the error
		status   exit.Status
	}{
		{name: "nothing missing", manager: "apt-get"},
		{name: "nothing missing, no manager"},
		{
			name: "apt", manager: "apt-get", without: []string{"systemd-nspawn", "systemd-nspawn@.service", "mount", "mountpoint"},
			calls: []string{"systemd-container util-linux mount"},
		},
		{name: "dnf", manager: "dnf", without: []string{"mount", "mountpoint", "modprobe"}, calls: []string{"kmod util-linux"}},
		{
			name: "offline", manager: "apt-get", without: []string{"modprobe"}, broken: errors.New("offline"),
			calls: []string{"kmod"}, want: "offline", status: exit.Failed,
		},
		{
			name: "package without the program", manager: "dnf", without: []string{"modprobe"}, useless: true,
			calls: []string{"kmod"}, want: "still lacks modprobe (package kmod)", status: exit.Refused,
		},
		{
			name: "no manager", without: []string{"systemd-nspawn", "mountpoint"},
			want: "lacks systemd-nspawn (package systemd-container), mountpoint (package util-linux), and it has no package manager", status: exit.Refused,
		},
		{
			name: "read-only", manager: "apt-get", readOnly: true, without: []string{"umount"},
			want: "lacks umount (package mount), and its /usr is read-only", status: exit.Refused,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := host(t, test.without...)
			var calls []string
			install := func(_ context.Context, names ...string) error {
				calls = append(calls, strings.Join(names, " "))
				for _, n := range packages.Needs() {
					if !test.useless && test.broken == nil {
						provide(t, root, n)
					}
				}
				return test.broken
			}
			if test.manager == "" || test.readOnly {
				install = nil
			}
			env := &stage.Env{Root: root, Log: journal.To(&bytes.Buffer{})}
			for range 2 { // the second finds everything there, or the same lack
				err := ensure(t.Context(), env, test.manager, test.readOnly, install)
				if exit.Of(err) != test.status || (err != nil && !strings.Contains(err.Error(), test.want)) {
					t.Fatalf("err = %v, status %d, want %q, status %d", err, exit.Of(err), test.want, test.status)
				}
			}
			if test.want != "" && len(calls) > 0 {
				calls = calls[:1]
			}
			if diff := cmp.Diff(test.calls, calls); diff != "" {
				t.Errorf("installed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestIsReadOnly(t *testing.T) {
	if got, err := isReadOnly(t.TempDir()); got || err != nil {
		t.Errorf("isReadOnly of a temporary folder = %v, %v", got, err)
	}
	if got, err := isReadOnly("/proc/sys/absent"); err == nil {
		t.Errorf("isReadOnly of nothing = %v, want an error", got)
	}
}
