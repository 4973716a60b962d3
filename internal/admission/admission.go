// Package admission decides whether an attempt may touch the host, and ends a successful one.
//
// It checks identity only; the whole configuration is preflight's, so that a complete
// host needs neither credentials nor an image. Nothing on the host changes before
// the record is durable, and a refusal changes nothing at all.
package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"unbounded/internal/config"
	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/paths"
	"unbounded/internal/record"
)

// Request is what an attempt asks for.
type Request struct {
	Root        string
	Prefix      string // where our programs are
	Credentials string // the folder of credentials that systemd has given to this service; "" without one
	Slots       Slots
	// Say is told where the configuration is from. May be nil.
	Say func(format string, args ...any)
}

// Admit decides about the configuration of the host, writes the record where the host is
// new, and leaves the admitted configuration and the marker for the stages behind.
// A refusal has exit.Refused; a host that cannot be inspected is an ordinary error.
func Admit(ctx context.Context, request Request) (record.Record, error) {
	data, asked, err := configuration(request)
	if err != nil {
		return record.Record{}, err
	}
	r, err := settle(ctx, request, asked)
	if err != nil {
		return r, err
	}
	if _, err := durable.Remove(paths.At(request.Root, paths.LastFailure)); err != nil {
		return r, err
	}
	if r.Phase == record.Complete {
		_, err = durable.Mark(paths.At(request.Root, paths.Complete))
		return r, err
	}
	// A marker over an unfinished installation would skip the stages that finish it.
	if _, err := durable.Remove(paths.At(request.Root, paths.Complete)); err != nil {
		return r, err
	}
	return r, hand(ctx, request.Root, data)
}

// hand leaves the configuration for the stages. What a killed start has left of it goes: it has the token in it.
func hand(ctx context.Context, root string, data []byte) error {
	path := paths.At(root, paths.Admitted)
	return record.Open(root).Alone(ctx, func() error {
		if err := durable.SweepFor(path); err != nil {
			return err
		}
		_, err := durable.Write(path, data, 0o600)
		return err
	})
}

// settle finds or makes the record of this installation. Two first starts may race: the
// slower one meets the other's record, or the other's work, and then looks again.
// With asked nil the record is there.
func settle(ctx context.Context, request Request, asked *record.Identity) (record.Record, error) {
	store := record.Open(request.Root)
	id, persistent, err := machineID(request.Root)
	if err != nil {
		return record.Record{}, err
	}
	r, err := store.Load()
	if errors.Is(err, record.ErrNone) && asked != nil {
		r, err = own(ctx, request, store, *asked, id, persistent)
		if !errors.Is(err, record.ErrExists) {
			return r, err
		}
		r, err = store.Load()
	}
	if err != nil {
		return r, record.Refuse(err)
	}
	if err := check(request.Root, r, asked, id); err != nil {
		return r, exit.As(exit.Refused, err)
	}
	if r.MachineID != "" || !persistent {
		return r, nil
	}
	return store.Update(ctx, func(r *record.Record) error {
		r.MachineID = id
		return nil
	})
}

// own makes the host ours. ErrExists: somebody was faster.
func own(ctx context.Context, request Request, store *record.Store, identity record.Identity, id string, persistent bool) (record.Record, error) {
	found, err := Inspect(ctx, request.Root, request.Slots)
	if err != nil {
		return record.Record{}, fmt.Errorf("this host has no install record and cannot be inspected: %w", err)
	}
	if len(found) > 0 {
		if _, err := store.Load(); !errors.Is(err, record.ErrNone) {
			return record.Record{}, record.ErrExists // what we found is the other start's work
		}
		return record.Record{}, existing(found)
	}
	r := record.New(identity)
	r.Prefix = request.Prefix
	if persistent {
		r.MachineID = id
	}
	return r, store.Create(ctx, r)
}

func existing(found []string) error {
	return exit.As(exit.Refused, fmt.Errorf("existing deployment without an install record: %s; %s", strings.Join(found, ", "), record.ResetRemedy))
}

// check holds an existing record against what is asked for: the rows of the admission table. With asked nil
// that is whatever is there.
func check(root string, r record.Record, asked *record.Identity, machineID string) error {
	if r.Phase == record.Resetting {
		return record.RefuseResetting()
	}
	if r.MachineID != "" && machineID != "" && r.MachineID != machineID {
		return fmt.Errorf("install record is of machine-id %s, this host is %s (a cloned disk?); %s", r.MachineID, machineID, record.ResetRemedy)
	}
	if asked == nil {
		return nil
	}
	if r.MachineName != asked.MachineName {
		return fmt.Errorf("this host is installed as MachineName %q, the configuration says %q; %s", r.MachineName, asked.MachineName, record.ResetRemedy)
	}
	if r.ConfigFingerprint == asked.Fingerprint() {
		return nil
	}
	return fmt.Errorf("%s; %s", difference(recorded(root, r), asked.Inputs()), record.ResetRemedy)
}

// recorded is what the record's fingerprint was made of: from the record, or, for one of
// the public agent, from the configuration that the node was built from. Zero if nobody knows.
func recorded(root string, r record.Record) record.Inputs {
	if r.Inputs.Fingerprint() == r.ConfigFingerprint {
		return r.Inputs
	}
	for _, slot := range paths.Slots() {
		data, err := os.ReadFile(paths.At(root, paths.Applied(slot)))
		if err != nil || !json.Valid(data) {
			continue
		}
		identity, err := config.ParseIdentity(data, config.ReadHost(root))
		if err == nil && identity.Fingerprint() == r.ConfigFingerprint {
			return identity.Inputs()
		}
	}
	return record.Inputs{}
}

// difference names the inputs that differ, old and new.
func difference(old, now record.Inputs) string {
	if old == (record.Inputs{}) {
		return fmt.Sprintf("this host is installed with another Kubernetes version, image or API server than the configuration's (%s, %s, %s)",
			now.KubernetesVersion, now.OCIImage, now.APIServer)
	}
	var parts []string
	for _, input := range []struct{ name, old, now string }{
		{"Cluster.Version", old.KubernetesVersion, now.KubernetesVersion},
		{"OCIImage", old.OCIImage, now.OCIImage},
		{"Kubelet.ApiServer", old.APIServer, now.APIServer},
	} {
		if input.old != input.now {
			parts = append(parts, fmt.Sprintf("%s is %q, the configuration says %q", input.name, input.old, input.now))
		}
	}
	return "this host is installed otherwise: " + strings.Join(parts, "; ")
}

// Finish ends a successful attempt: phase complete, then the marker. On a complete host it only sees to the marker.
func Finish(ctx context.Context, root string) (record.Record, error) {
	r, err := record.Open(root).Update(ctx, func(r *record.Record) error {
		if r.Phase == record.Resetting {
			return record.RefuseResetting()
		}
		r.Phase = record.Complete
		return nil
	})
	if err != nil {
		return r, record.Refuse(err)
	}
	_, err = durable.Mark(paths.At(root, paths.Complete))
	return r, err
}
