package systemd

import "context"

// Forgetter is a service manager, of the host or in a machine.
type Forgetter interface {
	ResetFailed(ctx context.Context, unit string) error
}

// Forget has systemd forget the failures of unit: they would show, and a start of it is refused when there were too many. The
// policy of some systems (SELinux on Azure Container Linux) denies it to everybody. That is no failure and is told to
// warn: a start that follows tells whether it mattered.
func Forget(ctx context.Context, manager Forgetter, warn func(format string, args ...any), unit string) {
	if err := manager.ResetFailed(ctx, unit); err != nil {
		warn("forget that %s failed: %v, ignoring", unit, err)
	}
}
