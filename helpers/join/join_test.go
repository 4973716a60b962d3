package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/apiserver"
	"unbounded/internal/diagnosis"
	"unbounded/internal/journal"
	"unbounded/internal/kube"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
	"unbounded/internal/tree"
)

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// snapshot is every file below root with mode, time and content.
func snapshot(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		content := ""
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(data)
		}
		name, _ := filepath.Rel(root, path)
		files["/"+name] = strings.Join([]string{info.Mode().String(), info.ModTime().String(), content}, " ")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

const built = "{\"MachineName\": \"m1\"}\n"

func checksum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func ground(t *testing.T) (*stage.Env, *tree.Root) {
	t.Helper()
	env := &stage.Env{Root: t.TempDir(), Slot: "kube1", Log: journal.To(io.Discard)}
	put(t, paths.At(env.Root, paths.Tree("kube1")+paths.Built), built)
	root, err := tree.Open(paths.At(env.Root, paths.Tree("kube1")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return env, root
}

func TestPromote(t *testing.T) {
	for _, test := range []struct {
		name   string
		before map[string]string
		absent []string
	}{
		{name: "first"},
		{name: "killed after the configuration", before: map[string]string{paths.Applied("kube1"): built}},
		{name: "killed before the marker", before: map[string]string{paths.Applied("kube1"): built, paths.Applied("kube1") + ".sha256": "old\n"}},
		{name: "built anew", before: map[string]string{paths.Applied("kube1"): "{}", paths.Applied("kube1") + ".sha256": "old\n", paths.Active("kube1"): ""}},
		{name: "the node ran in the other slot", before: map[string]string{paths.Active("kube2"): ""}, absent: []string{paths.Active("kube2")}},
		{name: "two markers", before: map[string]string{paths.Active("kube1"): "", paths.Active("kube2"): ""}, absent: []string{paths.Active("kube2")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			env, root := ground(t)
			for path, content := range test.before {
				put(t, paths.At(env.Root, path), content)
			}
			if err := promote(env, root); err != nil {
				t.Fatal(err)
			}
			want := map[string]string{
				paths.Applied("kube1"):             built,
				paths.Applied("kube1") + ".sha256": checksum(built) + "\n",
				paths.Active("kube1"):              "",
			}
			for path, content := range want {
				data, err := os.ReadFile(paths.At(env.Root, path))
				if err != nil || string(data) != content {
					t.Errorf("%s = %q, %v, want %q", path, data, err, content)
				}
				if info, err := os.Stat(paths.At(env.Root, path)); err != nil || info.Mode() != 0o600 {
					t.Errorf("%s: mode %v, %v, want 0600", path, info.Mode(), err)
				}
			}
			for _, path := range test.absent {
				if _, err := os.Lstat(paths.At(env.Root, path)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is there: %v", path, err)
				}
			}
			once := snapshot(t, env.Root)
			if err := promote(env, root); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(once, snapshot(t, env.Root)); diff != "" {
				t.Errorf("the second run changed something:\n%s", diff)
			}
		})
	}
}

func TestPromoteNothingBuilt(t *testing.T) {
	env, root := ground(t)
	if err := os.Remove(paths.At(env.Root, paths.Tree("kube1")+paths.Built)); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, env.Root)
	if err := promote(env, root); err == nil || !strings.Contains(err.Error(), paths.Target) {
		t.Errorf("promote: %v, want an error that says what to start", err)
	}
	if diff := cmp.Diff(before, snapshot(t, env.Root)); diff != "" {
		t.Error(diff)
	}
}

type api struct{ err error }

func (a api) Requests(context.Context) ([]kube.Request, error) { return nil, a.err }
func (a api) HasNode(context.Context, string) (bool, error)    { return false, a.err }

// waiting is a wait whose cluster answers err, or with nothing.
func waiting(err error) *wait {
	return &wait{
		env: &stage.Env{Slot: "kube1", Log: journal.To(io.Discard)},
		doctor: &diagnosis.Doctor{
			Slot: "kube1", Node: "n", Bootstrap: api{err}, LastWords: func(context.Context) string { return "" },
			Unit: func(context.Context) (systemd.Properties, error) {
				return systemd.Properties{ActiveState: "active"}, nil
			},
		},
	}
}

func TestUntil(t *testing.T) {
	rejected := &apiserver.Error{Kind: apiserver.Rejected, Server: "https://api", Err: errors.New("Unauthorized")}
	unreachable := &apiserver.Error{Kind: apiserver.Unreachable, Server: "https://api", Err: errors.New("refused")}
	limit := errors.New("the node has not joined within 1m0s")
	for _, test := range []struct {
		name  string
		api   error
		event time.Duration // when what is waited for happens; 0: never
		took  time.Duration
		want  []string
	}{
		{"there already", nil, -1, 0, nil},
		{"event", unreachable, 7 * time.Second, 7 * time.Second, nil},
		{"hopeless before the limit", rejected, 0, 10 * time.Second, []string{"bootstrap token is rejected"}},
		{"waited for until the limit", unreachable, 0, time.Minute, []string{limit.Error(), "unreachable", "refused"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, limit)
				defer cancel()
				began := time.Now()
				events := make(chan struct{}, 1)
				if test.event > 0 {
					time.AfterFunc(test.event, func() { events <- struct{}{} })
				}
				err := waiting(test.api).until(ctx, events, func(diagnosis.Finding) (bool, error) {
					return test.event != 0 && time.Since(began) >= test.event, nil
				})
				if (err == nil) != (test.want == nil) || time.Since(began) != test.took {
					t.Errorf("until: %v after %v, want %q after %v", err, time.Since(began), test.want, test.took)
				}
				for _, part := range test.want {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("until: %v, want %q in it", err, part)
					}
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		err := waiting(unreachable).until(ctx, nil, func(diagnosis.Finding) (bool, error) { return false, nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("until, stopped: %v", err)
		}
		want := errors.New("cannot be told")
		if err := waiting(nil).until(t.Context(), nil, func(diagnosis.Finding) (bool, error) { return false, want }); !errors.Is(err, want) {
			t.Errorf("until: %v, want %v", err, want)
		}
	})
}
