package record

import (
	"errors"
	"fmt"

	"unbounded/internal/exit"
	"unbounded/internal/paths"
)

// ResetRemedy is what every refusal over an existing installation asks for.
const ResetRemedy = "reset the host first with `systemctl start " + paths.ResetTarget + "`"

// Refuse gives an error of a Store the status of a refusal where a retry cannot help, with the remedy.
// Other errors, and ErrNone and ErrExists, which the callers act on, stay as they are.
func Refuse(err error) error {
	if errors.Is(err, ErrInvalid) {
		return exit.As(exit.Refused, fmt.Errorf("%w; %s", err, ResetRemedy))
	}
	return err
}

// RefuseResetting is the refusal of everything but reset while the phase is Resetting.
func RefuseResetting() error {
	return exit.As(exit.Refused, errors.New("the reset of this host is not finished: go on with `systemctl start "+paths.ResetTarget+"`"))
}
