package main

import (
	"context"
	"errors"

	"unbounded/internal/admission"
	"unbounded/internal/exit"
	"unbounded/internal/installed"
	"unbounded/internal/journal"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

// admit is the verb, for a service to which systemd has given the folder credentials, or none.
func admit(credentials string) stage.Func {
	return func(ctx context.Context, env *stage.Env) error {
		prefix, err := installed.Prefix()
		if err != nil {
			return err
		}
		r, err := admission.Admit(ctx, admission.Request{
			Root: env.Root, Prefix: prefix, Credentials: credentials, Slots: slots{}, Say: env.Log.Info,
		})
		if credentials != "" && errors.Is(err, admission.ErrNoConfig) {
			return exit.As(exit.Failed, err) // systemd passes over a credential that is not there: it may come yet
		}
		if err != nil {
			return err
		}
		env.Log = env.Log.With(journal.FieldInstall, r.InstallID)
		env.Log.Info("admitted: machine %s, phase %s", r.MachineName, r.Phase)
		return nil
	}
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
	return manager.Registered(ctx, slot)
}
