package admission

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"unbounded/internal/config"
	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/record"
)

// Look decides about identity as Admit does, and changes nothing: for those who ask before they
// start. The record is the host's; record.ErrNone is never returned: a clean host is no error.
func Look(ctx context.Context, request Request, identity record.Identity) (record.Record, error) {
	return look(ctx, request, &identity)
}

// Check tells whether Admit would admit the host with the configuration in file, or, with "", with the one that Admit
// would read. It has Admit's errors, and changes nothing.
func Check(ctx context.Context, request Request, file string) (record.Record, error) {
	if file == "" {
		_, asked, err := configuration(request)
		if err != nil {
			return record.Record{}, err
		}
		return look(ctx, request, asked)
	}
	data, err := durable.Read(file, config.MaxSize+1)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, durable.ErrNotFile) {
		return record.Record{}, exit.As(exit.Refused, err)
	}
	if err != nil {
		return record.Record{}, err
	}
	identity, err := config.ParseIdentity(data, config.ReadHost(request.Root))
	if err != nil {
		return record.Record{}, err
	}
	return look(ctx, request, &identity)
}

// look decides; with asked nil the host is complete, and that is what is asked for.
func look(ctx context.Context, request Request, asked *record.Identity) (record.Record, error) {
	id, _, err := machineID(request.Root)
	if err != nil {
		return record.Record{}, err
	}
	r, err := record.Open(request.Root).Load()
	if err == nil {
		return r, exit.As(exit.Refused, check(request.Root, r, asked, id))
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
