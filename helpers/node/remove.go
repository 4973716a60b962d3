package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"unbounded/internal/durable"
	"unbounded/internal/mounts"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

// madeMark says that the folder of machines' settings was not there before us. Everything else that is made on
// the host for our files has names of ours.
const madeMark = paths.Before + "/node-made-nspawn-folder"

// note saves that before the folder is made.
func note(root string) error {
	if _, err := os.Lstat(paths.At(root, paths.NspawnDir)); !absent(err) {
		return err
	}
	_, err := durable.Mark(paths.At(root, madeMark))
	return err
}

// manager is what a removal asks of the host's service manager.
type manager interface {
	SlotRuns(ctx context.Context, slot string) (bool, error)
	Properties(ctx context.Context, unit string) (systemd.Properties, error)
	Stop(ctx context.Context, unit string) (systemd.Properties, error)
	ResetFailed(ctx context.Context, unit string) error
	Reload(ctx context.Context) error
}

// removal is one run of the verb remove.
type removal struct {
	*stage.Env
	host manager
	proc string
}

func remove(ctx context.Context, env *stage.Env) error {
	host, err := systemd.Connect(ctx)
	if err != nil {
		return err
	}
	defer host.Close()
	return (&removal{env, host, "/proc"}).run(ctx)
}

func (r *removal) run(ctx context.Context) error {
	for _, slot := range paths.Slots() {
		runs, err := r.host.SlotRuns(ctx, slot)
		if err != nil {
			return err
		}
		if runs {
			return fmt.Errorf("machine %s runs, and needs its settings: stop it with `systemctl stop %s`, then reset again", slot, paths.MachineUnit(slot))
		}
	}
	for _, slot := range paths.Slots() {
		if err := r.unmount(ctx, slot); err != nil {
			return err
		}
		if err := r.files(slot); err != nil {
			return err
		}
	}
	if err := r.folder(paths.BPF); err != nil {
		return err
	}
	if err := r.reload(ctx); err != nil {
		return err
	}
	return r.settingsFolder()
}

// unmount has PID 1 unmount the slot's BPF file system, whoever mounted it.
func (r *removal) unmount(ctx context.Context, slot string) error {
	point, unit := paths.BPF+"/"+slot, filepath.Base(paths.BPFMount(slot))
	p, err := r.host.Properties(ctx, unit)
	if err != nil {
		return err
	}
	mounted := p.Runs()
	if mounted {
		r.Log.Status("wait for %s to be unmounted", point)
		p, err = r.host.Stop(ctx, unit)
		if _, ended := errors.AsType[*systemd.JobError](err); err != nil && !ended {
			return err
		}
	}
	table, err := mounts.Read(r.proc)
	if err != nil {
		return err
	}
	if left := mounts.On(table, point); len(left) > 0 {
		used := mounts.Table{Proc: r.proc, Log: r.Log}.Holders(left[0])
		if len(used) == 0 {
			used = []string{"something that was not found"}
		}
		return fmt.Errorf("unmount %s: it is in use by %s: end that, then reset again", point, strings.Join(used, ", "))
	}
	if mounted {
		r.Log.Changed(point, "unmounted")
	}
	if p.ActiveState == "failed" { // it was in use at an earlier try
		if err := r.host.ResetFailed(ctx, unit); err != nil { // some systems deny it by policy
			r.Log.Notice("%v, ignoring: it shows as failed until the host reboots", err)
		}
	}
	return r.folder(point)
}

// files removes the slot's files, by their names: edited ones too. What else is in the folder of drop-ins stays.
func (r *removal) files(slot string) error {
	for _, path := range []string{paths.Nspawn(slot), paths.DropInFile(slot), paths.BPFMount(slot)} {
		if err := r.file(path); err != nil {
			return err
		}
	}
	// The public agent's, which orders the machine behind a unit that a reset removes.
	local := paths.DropIn(slot) + "/10-localdns.conf"
	text, err := os.ReadFile(paths.At(r.Root, local))
	if err == nil && strings.Contains(string(text), "unbounded-localdns-network.service") {
		err = r.file(local)
	}
	if err != nil && !absent(err) {
		return err
	}
	return r.folder(paths.DropIn(slot))
}

func (r *removal) file(path string) error {
	if err := durable.SweepFor(paths.At(r.Root, path)); err != nil && !absent(err) {
		return err
	}
	removed, err := durable.Remove(paths.At(r.Root, path))
	if removed && err == nil {
		r.Log.Changed(path, "removed")
	}
	return err
}

// folder removes a folder that nobody else has a use for; with foreign things in it it stays.
func (r *removal) folder(path string) error {
	names, err := os.ReadDir(paths.At(r.Root, path))
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(names) > 0 {
		r.Log.Notice("%s has %s, which is not ours, leaving it", path, names[0].Name())
		return nil
	}
	return r.file(path)
}

// reload makes systemd forget files of ours. A killed run may have removed them, so systemd is asked.
func (r *removal) reload(ctx context.Context) error {
	for _, slot := range paths.Slots() {
		machine, err := r.host.Properties(ctx, paths.MachineUnit(slot))
		if err != nil {
			return err
		}
		mount, err := r.host.Properties(ctx, filepath.Base(paths.BPFMount(slot)))
		if err != nil {
			return err
		}
		for _, path := range append(slices.Clone(machine.DropInPaths), mount.FragmentPath) {
			if path != paths.BPFMount(slot) && filepath.Dir(path) != paths.DropIn(slot) {
				continue
			}
			if _, err := os.Lstat(paths.At(r.Root, path)); absent(err) {
				return r.host.Reload(ctx)
			}
		}
	}
	return nil
}

// settingsFolder removes the folder of machines' settings if it was made for ours and is empty.
func (r *removal) settingsFolder() error {
	_, err := os.Lstat(paths.At(r.Root, madeMark))
	switch {
	case absent(err):
		return nil
	case err != nil:
		return err
	}
	if err := r.folder(paths.NspawnDir); err != nil {
		return err
	}
	_, err = durable.Remove(paths.At(r.Root, madeMark))
	return err
}

func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
