package main

import (
	"context"
	"fmt"
	"strings"

	"unbounded/internal/before"
	"unbounded/internal/config"
	"unbounded/internal/dockerd"
	"unbounded/internal/dropin"
	"unbounded/internal/fstab"
	"unbounded/internal/hardening"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/swap"
	"unbounded/internal/systemd"
)

const concern = "conflicts"

// units is the service manager of the host.
type units interface {
	dropin.Units
	Reload(ctx context.Context) error
	Stop(ctx context.Context, unit string) (systemd.Properties, error)
}

func converge(ctx context.Context, env *stage.Env) error {
	manager, err := systemd.Connect(ctx)
	if err != nil {
		return err
	}
	defer manager.Close()
	return host{env, manager, swap.Off}.converge(ctx)
}

type host struct {
	*stage.Env
	units   units
	swapOff func(root, path string) error
}

// converge saves all that is going to change, then changes it: files, then what systemd has loaded of
// them, then what runs.
func (h host) converge(ctx context.Context) error {
	image, err := before.Load(h.Root, concern)
	if err != nil {
		return err
	}
	s, err := h.look(ctx)
	if err != nil {
		return err
	}
	onDisk, err := h.onDisk(s)
	if err != nil {
		return err
	}
	areas, err := swap.Find(h.Root)
	if err != nil {
		return err
	}
	running := append(dropin.Running(s.units(), s.loaded), areas...)
	image.Note(onDisk...)
	image.Note(running...)
	if err := image.Save(); err != nil {
		return err
	}
	written, err := h.write(onDisk)
	if err != nil {
		return err
	}
	if written || s.stale() {
		if err := h.units.Reload(ctx); err != nil {
			return err
		}
	}
	return h.stop(ctx, running)
}

func (h host) look(ctx context.Context) (s seen, err error) {
	s.keepFirewall = h.Config.HostFirewall == config.FirewallKeep
	networkd, err := h.units.Properties(ctx, paths.NetworkdUnit)
	if err != nil {
		return s, err
	}
	s.hardening = hardening.Files(h.Root, networkd.Runs() || strings.HasPrefix(networkd.UnitFileState, "enabled"))
	if s.swapUnits, err = dropin.SwapUnits(ctx, h.Root, h.units); err != nil {
		return s, err
	}
	s.loaded, err = dropin.Look(ctx, h.units, s.units())
	return s, err
}

// onDisk compares all files with what they are to be.
func (h host) onDisk(s seen) ([]before.Change, error) {
	changes, err := fstab.Find(h.Root)
	if err != nil {
		return nil, err
	}
	for _, f := range s.files() {
		change, err := before.FileChange(h.Root, f.Path, f.Content)
		if f.Content == "" {
			change.Want = before.Gone()
		}
		if err != nil {
			return nil, err
		}
		changes = append(changes, change)
	}
	if s.loaded["docker.service"].LoadState == "loaded" {
		change, err := dockerd.Find(h.Root)
		if err != nil {
			h.Log.Warn("%v, ignoring: docker is held back anyway", err)
			return changes, nil
		}
		changes = append(changes, change)
	}
	return changes, nil
}

func (h host) write(changes []before.Change) (written bool, err error) {
	for _, c := range changes {
		var changed bool
		switch c.Kind {
		case before.Line: // one edit does all lines
			changed, err = fstab.Apply(h.Root)
		case before.Key:
			changed, err = dockerd.Apply(h.Root)
		default:
			changed, err = before.ApplyFile(h.Root, c)
		}
		if err != nil {
			return written, fmt.Errorf("change %s: %w", c.Object, err)
		}
		if changed {
			written = true
			h.Log.Changed(c.Object, "written")
		}
	}
	return written, nil
}

// stop ends what runs. Units come before areas: some turn swap off themselves.
func (h host) stop(ctx context.Context, changes []before.Change) error {
	for _, c := range changes {
		if c.Kind == before.Swap {
			h.Log.Status("turning swap area %s off", c.Object)
			if err := h.swapOff(h.Root, c.Object); err != nil {
				return err
			}
			h.Log.Changed(c.Object, "swap area turned off")
			continue
		}
		h.Log.Status("stopping %s", c.Object)
		after, err := h.units.Stop(ctx, c.Object)
		if err != nil {
			return err
		}
		if after.Runs() {
			return fmt.Errorf("%s runs again although it was stopped: see what starts it with `systemctl list-dependencies --reverse %s`", c.Object, c.Object)
		}
		h.Log.Changed(c.Object, "stopped")
	}
	return nil
}
