package main

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/lock"
	"unbounded/internal/paths"
	"unbounded/internal/record"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, args     string
		config, prefix string
		err            string
	}{
		{name: "nothing", prefix: paths.DefaultRoot},
		{name: "both", args: "--config /x --prefix=/srv/u", config: "/x", prefix: "/srv/u"},
		{name: "an argument", args: "kube1", err: `unknown argument "kube1"`},
		{name: "no such option", args: "--force", err: "force"},
		{name: "relative", args: "--prefix u", err: "absolute"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			q, err := parse(strings.Fields(test.args))
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("parse(%s) = %v, want %q", test.args, err, test.err)
			}
			if err == nil && (q.config != test.config || q.prefix != test.prefix) {
				t.Errorf("parse(%s) = %+v", test.args, q)
			}
		})
	}
}

// idle is a host that no machine runs on.
type idle struct{}

func (idle) SlotRuns(context.Context, string) (bool, error)   { return false, nil }
func (idle) Registered(context.Context, string) (bool, error) { return false, nil }

const (
	config  = `{"MachineName":"m1","Cluster":{"Version":"v1.37.2"},"Kubelet":{"ApiServer":"https://api.test"},"OCIImage":"r.test/node:1"}`
	another = `{"MachineName":"m2","Cluster":{"Version":"v1.37.2"},"Kubelet":{"ApiServer":"https://api.test"},"OCIImage":"r.test/node:1"}`
	machine = "00000000000000000000000000000001"
)

func recorded(t *testing.T, change func(*record.Record)) string {
	t.Helper()
	r := record.New(record.Identity{MachineName: "m1", KubernetesVersion: "1.37.2", OCIImage: "r.test/node:1", APIServer: "https://api.test"})
	r.Prefix, r.MachineID = paths.DefaultRoot, machine
	if change != nil {
		change(&r)
	}
	data, err := r.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestAnswer(t *testing.T) {
	t.Parallel()
	phase := func(p record.Phase) string { return recorded(t, func(r *record.Record) { r.Phase = p }) }
	const staged = "/var/lib/unbounded/install.x/config.json"
	for _, test := range []struct {
		name   string
		files  map[string]string
		config string
		prefix string
		held   bool
		want   exit.Status
		says   string
	}{
		{name: "nobody's", files: map[string]string{paths.Config: config}, says: "nobody's"},
		{name: "nobody's, another file", files: map[string]string{staged: config}, config: staged, says: "nobody's"},
		{name: "of the system's credential", files: map[string]string{paths.SystemCredentials + "/" + paths.Credential: config}, says: "nobody's"},
		{name: "ours, installing", files: map[string]string{paths.Config: config, paths.Record: recorded(t, nil)}, says: "phase installing"},
		{name: "complete, no configuration", files: map[string]string{paths.Record: phase(record.Complete)}, says: "phase complete"},
		{name: "no configuration", want: exit.Refused, says: paths.Config + " is missing"},
		{name: "no such file", files: map[string]string{paths.Config: config}, config: staged, want: exit.Refused, says: staged},
		{name: "a folder", files: map[string]string{staged + "/x": ""}, config: staged, want: exit.Refused, says: "not a regular file"},
		{name: "another identity, in another file", files: map[string]string{paths.Config: config, staged: another, paths.Record: phase(record.Complete)}, config: staged, want: exit.Refused, says: `MachineName "m1"`},
		{name: "resetting", files: map[string]string{paths.Config: config, paths.Record: phase(record.Resetting)}, want: exit.Refused, says: "reset"},
		{name: "of somebody else", files: map[string]string{paths.Config: config, paths.Tree("kube1") + "/x": ""}, want: exit.Refused, says: "existing deployment"},
		{name: "another prefix", files: map[string]string{paths.Config: config, paths.Record: recorded(t, nil)}, prefix: "/srv/u", want: exit.Refused, says: "below /opt/unbounded"},
		{name: "of the public agent", files: map[string]string{paths.Config: config, paths.Record: recorded(t, func(r *record.Record) { r.Prefix = "" })}, prefix: "/srv/u", says: "admitted"},
		{name: "the lock is held", files: map[string]string{paths.Config: config}, held: true, want: exit.Held, says: "is held by"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for path, content := range test.files {
				write(t, paths.At(root, path), content)
			}
			write(t, paths.At(root, paths.MachineID), machine+"\n")
			write(t, paths.At(root, "/proc/self/mountinfo"), "")
			if test.held {
				held, err := lock.Take(root, lock.Exclusive)
				if err != nil {
					t.Fatal(err)
				}
				defer held.Release()
			}
			q := question{root: root, prefix: paths.DefaultRoot, slots: idle{}}
			if test.config != "" {
				q.config = paths.At(root, test.config)
			}
			if test.prefix != "" {
				q.prefix = test.prefix
			}
			before := everything(t, root)
			says, err := q.answer(t.Context())
			if got := exit.Of(err); got != test.want {
				t.Fatalf("answer() = %v, status %d, want %d", err, got, test.want)
			}
			if err != nil {
				says = err.Error()
			}
			if !strings.Contains(says, test.says) {
				t.Errorf("answer() says %q, want %q", says, test.says)
			}
			if diff := cmp.Diff(before, everything(t, root)); diff != "" {
				t.Errorf("answer() changed the host:\n%s", diff)
			}
		})
	}
}

// The record has the prefix without links.
func TestAnswerThroughLink(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, paths.At(root, paths.Config), config)
	write(t, paths.At(root, "/data/unbounded/x"), "")
	write(t, paths.At(root, paths.Record), recorded(t, func(r *record.Record) { r.Prefix, r.MachineID = "/data/unbounded", "" }))
	if err := os.Mkdir(paths.At(root, "/opt"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../data/unbounded", paths.At(root, paths.DefaultRoot)); err != nil {
		t.Fatal(err)
	}
	if _, err := (question{root: root, prefix: paths.DefaultRoot, slots: idle{}}).answer(t.Context()); err != nil {
		t.Errorf("answer() = %v", err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := durable.Replace(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// everything is every path below root with its mode and time.
func everything(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			all[path] = info.Mode().String() + info.ModTime().String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
