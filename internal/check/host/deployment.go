package host

import (
	"context"
	"errors"

	"unbounded/internal/admission"
	"unbounded/internal/check"
	"unbounded/internal/config"
	"unbounded/internal/exit"
	"unbounded/internal/systemd"
)

// Deployment decides about the identity in the configuration data as admission would.
func (h *Host) Deployment(slots admission.Slots, data []byte) check.Check {
	return check.Check{Name: "existing-deployment", Look: func(ctx context.Context) []check.Result {
		const target = "install record"
		identity, err := config.ParseIdentity(data, config.ReadHost(h.Root))
		if err != nil {
			return nil // agent-config says it
		}
		r, err := admission.Look(ctx, admission.Request{Root: h.Root, Prefix: h.Prefix, Slots: slots}, identity)
		switch {
		case exit.Of(err) == exit.Refused:
			return []check.Result{check.Fail(check.Never, target, "%v", err)}
		case err != nil:
			return []check.Result{check.Fail(check.May, target, "%v", err)}
		case r.InstallID != "":
			return []check.Result{check.Pass(target, "this host is of installation %s, phase %s", r.InstallID, r.Phase)}
		}
		return []check.Result{check.Pass(target, "there is none, and nothing of another deployment")}
	}}
}

// Slots are admission's questions to the one connection to systemd that there is, if there is one.
type Slots struct{ Manager *systemd.Manager }

var errNoSystemd = errors.New("systemd cannot be reached over D-Bus")

// SlotRuns asks PID 1.
func (s Slots) SlotRuns(ctx context.Context, slot string) (bool, error) {
	if s.Manager == nil {
		return false, errNoSystemd
	}
	return s.Manager.SlotRuns(ctx, slot)
}

// Registered asks machined.
func (s Slots) Registered(ctx context.Context, slot string) (bool, error) {
	if s.Manager == nil {
		return false, errNoSystemd
	}
	return s.Manager.Registered(ctx, slot)
}
