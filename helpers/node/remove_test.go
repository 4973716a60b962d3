package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"unbounded/internal/journal"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

// pid1 is a service manager that has read the host's files once.
type pid1 struct {
	root    string
	runs    string          // the slot that runs
	mounted map[string]bool // BPF file systems, by slot
	busy    bool
	stale   bool // it knows files of ours, as of before they were removed
	reloads int
	stops   []string
	failed  bool // an unmounted file system that was in use once
	resets  int
}

func (p *pid1) SlotRuns(_ context.Context, slot string) (bool, error) { return slot == p.runs, nil }

func (p *pid1) Properties(_ context.Context, unit string) (systemd.Properties, error) {
	have := systemd.Properties{ActiveState: "inactive"}
	for _, slot := range paths.Slots() {
		switch unit {
		case paths.MachineUnit(slot):
			if p.stale {
				have.DropInPaths = []string{"/usr/lib/systemd/system/service.d/10.conf", paths.DropInFile(slot)}
			}
		case filepath.Base(paths.BPFMount(slot)):
			if p.mounted[slot] {
				have.ActiveState = "active"
			}
			if p.stale {
				have.FragmentPath = paths.BPFMount(slot)
			}
		}
	}
	return have, nil
}

func (p *pid1) Stop(_ context.Context, unit string) (systemd.Properties, error) {
	p.stops = append(p.stops, unit)
	if p.busy {
		return systemd.Properties{}, &systemd.JobError{Verb: "stop", Name: unit, Result: systemd.ResultFailed}
	}
	for _, slot := range paths.Slots() {
		if unit == filepath.Base(paths.BPFMount(slot)) {
			delete(p.mounted, slot)
		}
	}
	have := systemd.Properties{ActiveState: "inactive"}
	if p.failed {
		have.ActiveState = "failed"
	}
	return have, os.WriteFile(p.root+"/proc/self/mountinfo", nil, 0o600)
}

func (p *pid1) ResetFailed(context.Context, string) error {
	p.resets++
	return errors.New("access denied")
}

func (p *pid1) Reload(context.Context) error {
	p.reloads++
	p.stale = false
	return nil
}

// installed is a host with the files of slots and those named, and what removes them.
func installed(t *testing.T, slots []string, more map[string]string) (*removal, *pid1, *bytes.Buffer) {
	t.Helper()
	root, log := t.TempDir(), &bytes.Buffer{}
	files := map[string]string{"/proc/self/mountinfo": "", paths.SystemdDir + "/other.service": ""}
	host := &pid1{root: root, mounted: map[string]bool{}, stale: len(slots) > 0}
	for _, slot := range slots {
		for _, path := range []string{paths.Nspawn(slot), paths.DropInFile(slot), paths.BPFMount(slot)} {
			files[path] = "x\n"
		}
		files[paths.DropIn(slot)+"/.override.conf.unbounded-tmp-0123456789ab"] = ""
		files["/proc/self/mountinfo"] += "30 25 0:40 / " + paths.BPF + "/" + slot + " rw,relatime shared:9 - bpf bpf rw,mode=700\n"
		host.mounted[slot] = true
		if err := os.MkdirAll(root+paths.BPF+"/"+slot, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, content := range more {
		files[path] = content
	}
	for path, content := range files {
		path = root + path
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	env := &stage.Env{Root: root, Log: journal.To(log)}
	return &removal{env, host, root + "/proc"}, host, log
}

// left are the paths below root that are not of the host itself.
func left(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	for _, top := range []string{paths.SystemdDir, paths.NspawnDir, paths.BPF, paths.Before} {
		err := filepath.WalkDir(root+top, func(path string, _ os.DirEntry, err error) error {
			if err == nil {
				all = append(all, strings.TrimPrefix(path, root))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return slices.DeleteFunc(all, func(path string) bool {
		return path == paths.SystemdDir || path == paths.SystemdDir+"/other.service" || path == paths.Before
	})
}

func TestRemove(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		slots []string
		more  map[string]string
		left  []string
		says  []string
	}{
		{name: "nothing is there"},
		{name: "one slot", slots: []string{"kube1"}, left: []string{paths.NspawnDir}, says: []string{paths.BPF + "/kube1: unmounted"}},
		{name: "both slots", slots: []string{"kube1", "kube2"}, left: []string{paths.NspawnDir}},
		{name: "the folder was made by us", slots: []string{"kube1"}, more: map[string]string{madeMark: ""}},
		{
			name: "the folder was made by us and others use it", slots: []string{"kube1"},
			more: map[string]string{madeMark: "", paths.Nspawn("mine"): ""}, left: []string{paths.NspawnDir, paths.Nspawn("mine")},
			says: []string{paths.NspawnDir + " has mine.nspawn, which is not ours"},
		},
		{
			name: "a foreign drop-in", slots: []string{"kube1"}, more: map[string]string{madeMark: "", paths.DropIn("kube1") + "/50-mine.conf": ""},
			left: []string{paths.DropIn("kube1"), paths.DropIn("kube1") + "/50-mine.conf"},
			says: []string{paths.DropIn("kube1") + " has 50-mine.conf, which is not ours"},
		},
		{
			name: "the public agent's drop-in for LocalDNS", slots: []string{"kube1"},
			more: map[string]string{madeMark: "", paths.DropIn("kube1") + "/10-localdns.conf": "[Unit]\nAfter=unbounded-localdns-network.service\n"},
		},
		{
			name: "another's of that name", more: map[string]string{paths.DropIn("kube1") + "/10-localdns.conf": "[Unit]\n"},
			left: []string{paths.DropIn("kube1"), paths.DropIn("kube1") + "/10-localdns.conf"},
		},
		{
			name: "something in the folder of the BPF file system", slots: []string{"kube1"}, more: map[string]string{madeMark: "", paths.BPF + "/kube1/x": ""},
			left: []string{paths.BPF, paths.BPF + "/kube1", paths.BPF + "/kube1/x"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, host, log := installed(t, tt.slots, tt.more)
			if err := r.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := left(t, r.Root); !slices.Equal(got, tt.left) {
				t.Errorf("left %q, want %q", got, tt.left)
			}
			if len(host.stops) != len(tt.slots) || host.reloads != min(len(tt.slots), 1) {
				t.Errorf("stopped %q, reloaded %d times", host.stops, host.reloads)
			}
			for _, says := range tt.says {
				if !strings.Contains(log.String(), says) {
					t.Errorf("log %q does not say %q", log, says)
				}
			}
			host.stops, host.reloads = nil, 0
			log.Reset()
			if err := r.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if host.stops != nil || host.reloads > 0 || strings.Contains(log.String(), "removed") {
				t.Errorf("a second time: stopped %q, reloaded %d times, said %q", host.stops, host.reloads, log)
			}
		})
	}
}

func TestRemoveFails(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(host *pid1)
		says  string
	}{
		{"the machine runs", func(host *pid1) { host.runs = "kube2" }, "systemctl stop systemd-nspawn@kube2.service"},
		{"busy", func(host *pid1) { host.busy = true }, "unmount " + paths.BPF + "/kube1: it is in use"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, host, _ := installed(t, []string{"kube1"}, map[string]string{madeMark: ""})
			before := left(t, r.Root)
			tt.spoil(host)
			err := r.run(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("remove = %v, want one line that says %q", err, tt.says)
			}
			if after := left(t, r.Root); !slices.Equal(after, before) {
				t.Errorf("left %q, want all of %q", after, before)
			}
		})
	}
}

func TestRemoveAfterBusy(t *testing.T) {
	t.Parallel()
	r, host, log := installed(t, []string{"kube1"}, nil)
	host.failed = true
	if err := r.run(t.Context()); err != nil || host.resets != 1 || !strings.Contains(log.String(), "access denied, ignoring") {
		t.Errorf("remove = %v, forgot %d failures, said %s", err, host.resets, log)
	}
}

// TestNote makes the host's files where the folder of settings is missing, and where it is not.
func TestNote(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{false, true} {
		w := newWorld(t)
		if there {
			w.must(os.MkdirAll(paths.At(w.root, paths.NspawnDir), 0o755))
		}
		for range 2 {
			w.must(w.node(w.configuration(nil), -1))
			if _, err := os.Lstat(paths.At(w.root, madeMark)); (err == nil) == there {
				t.Errorf("folder was there: %v; mark: %v", there, err)
			}
		}
	}
}
