package admission

import (
	"context"
	"errors"
	"fmt"

	"unbounded/internal/exit"
	"unbounded/internal/record"
)

// Look decides about identity as Admit does, and changes nothing: for those who ask before they
// start. The record is the host's; record.ErrNone is never returned: a clean host is no error.
func Look(ctx context.Context, request Request, identity record.Identity) (record.Record, error) {
	id, _, err := machineID(request.Root)
	if err != nil {
		return record.Record{}, err
	}
	r, err := record.Open(request.Root).Load()
	if err == nil {
		return r, exit.As(exit.Refused, check(request.Root, r, &identity, id))
	}
	if !errors.Is(err, record.ErrNone) {
		return r, record.Refuse(err)
	}
	found, err := Inspect(ctx, request.Root, request.Slots)
	if err != nil {
		return r, fmt.Errorf("this host cannot be inspected: %w", err)
	}
	if len(found) > 0 {
		return r, existing(found)
	}
	return r, nil
}
