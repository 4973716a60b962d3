// Command admission makes this host ours, or refuses, and marks the end of an installation.
//
// The verb admit runs as unbounded-admit.service, before anything else. It writes the install
// record, /run/unbounded/admitted.json and the marker that the conditions of the
// stages look at; when it refuses it writes nothing.
//
// The verb complete runs as unbounded-complete.service, when the node has joined. It sets
// the record's phase to complete, then writes the marker.
package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"unbounded/internal/admission"
	"unbounded/internal/journal"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

func main() {
	stage.MainVerbs("unbounded-admission", map[string]stage.Verb{
		"admit":    {Needs: stage.LockOnly, Do: admit},
		"complete": {Needs: stage.LockOnly, Do: complete},
	})
}

func admit(ctx context.Context, env *stage.Env) error {
	prefix, err := prefix()
	if err != nil {
		return err
	}
	r, err := admission.Admit(ctx, admission.Request{Root: env.Root, Prefix: prefix, Slots: slots{}})
	if err != nil {
		return err
	}
	env.Log = env.Log.With(journal.FieldInstall, r.InstallID)
	env.Log.Info("admitted: machine %s, phase %s", r.MachineName, r.Phase)
	return nil
}

func complete(ctx context.Context, env *stage.Env) error {
	r, err := admission.Finish(ctx, env.Root)
	if err != nil {
		return err
	}
	env.Log = env.Log.With(journal.FieldInstall, r.InstallID)
	env.Log.Info("the installation of machine %s is complete", r.MachineName)
	return nil
}

// prefix is where this program is installed: <prefix>/slots/<colour>/unbounded-admission.
func prefix() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	self, err = filepath.EvalSymlinks(self)
	return filepath.Dir(filepath.Dir(filepath.Dir(self))), err
}

// slots asks the system only when admission has to inspect the host: a retry needs no D-Bus.
type slots struct{}

func (slots) SlotRuns(ctx context.Context, slot string) (runs bool, err error) {
	manager, err := systemd.Connect(ctx)
	if err != nil {
		return false, err
	}
	defer manager.Close()
	return manager.SlotRuns(ctx, slot)
}

func (slots) Registered(ctx context.Context, slot string) (bool, error) {
	manager, err := systemd.Connect(ctx)
	if err != nil {
		return false, err
	}
	defer manager.Close()
	_, _, found, err := manager.Machine(ctx, slot)
	if errors.Is(err, systemd.ErrNoMachined) {
		return false, nil // systemd-container is not installed, and PID 1 has been asked
	}
	return found, err
}
