package slot

import (
	"context"

	"unbounded/internal/journal"
)

// forgetter is a service manager, of the host or in a machine.
type forgetter interface {
	ResetFailed(ctx context.Context, unit string) error
}

// Forget has systemd forget the failures of unit before a start of it, which is refused when there were too many. The policy of
// some systems (SELinux on Azure Container Linux) denies it to everybody: the start that follows tells whether it mattered.
func Forget(ctx context.Context, manager forgetter, log *journal.Log, unit string) {
	if err := manager.ResetFailed(ctx, unit); err != nil {
		log.Warn("forget that %s failed: %v, ignoring", unit, err)
	}
}
