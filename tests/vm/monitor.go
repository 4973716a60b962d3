package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// monitor speaks QMP with QEMU.
type monitor struct {
	commands io.Writer
	messages chan message // the greeting, answers, and events of a migration
	closed   chan struct{}
}

// message is what QEMU says: its greeting, the answer to a command, or an event.
type message struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`
	Data  struct {
		Status string `json:"status"`
	} `json:"data"`
}

func newMonitor(commands io.Writer, messages io.Reader) *monitor {
	m := &monitor{commands: commands, messages: make(chan message, 64), closed: make(chan struct{})}
	go func() {
		defer close(m.closed)
		decoder := json.NewDecoder(messages)
		for {
			var next message
			if decoder.Decode(&next) != nil {
				return
			}
			if next.Event == "" || next.Event == "MIGRATION" {
				m.messages <- next
			}
		}
	}()
	return m
}

// do gives QEMU a command and waits for the answer.
func (m *monitor) do(ctx context.Context, command string, arguments any) error {
	line, err := json.Marshal(map[string]any{"execute": command, "arguments": arguments})
	if err != nil {
		return err
	}
	if _, err := m.commands.Write(append(line, '\n')); err != nil {
		return err
	}
	return m.until(ctx, command, func(next message) (bool, error) {
		if next.Error != nil {
			return true, fmt.Errorf("%s: %s", command, next.Error.Desc)
		}
		return next.Return != nil, nil
	})
}

func (m *monitor) until(ctx context.Context, what string, done func(message) (bool, error)) error {
	for {
		select {
		case next := <-m.messages:
			if ended, err := done(next); ended || err != nil {
				return err
			}
		case <-m.closed:
			return fmt.Errorf("%s: QEMU has ended", what)
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
}

// freeze writes the machine's memory to a file, and stops the machine at the end of that: one that was
// stopped before would not run on when it is thawed.
func (b *boot) freeze(ctx context.Context, path string) error {
	type object = map[string]any
	for _, step := range []struct {
		command   string
		arguments any
	}{
		{"qmp_capabilities", object{}},
		{"migrate-set-capabilities", object{"capabilities": []any{object{"capability": "events", "state": true}}}},
		{"migrate-set-parameters", object{"max-bandwidth": 1 << 33, "downtime-limit": 60_000}},
		{"migrate", object{"uri": "exec:cat >" + path + ".part && mv " + path + ".part " + path}},
	} {
		if err := b.qmp.do(ctx, step.command, step.arguments); err != nil {
			return err
		}
	}
	err := b.qmp.until(ctx, "migrate", func(next message) (bool, error) {
		if next.Event == "MIGRATION" && next.Data.Status == "failed" {
			return true, fmt.Errorf("migrate: %s", next.Data.Status)
		}
		return next.Event == "MIGRATION" && next.Data.Status == "completed", nil
	})
	// QEMU is through when the pipe has it all; whoever kills it then kills the other end too.
	for err == nil {
		if _, absent := os.Stat(path); absent == nil {
			break
		}
		select {
		case <-ctx.Done():
			err = fmt.Errorf("migrate: %w", ctx.Err())
		case <-b.ended:
			err = errors.New("migrate: QEMU has ended")
		case <-time.After(20 * time.Millisecond):
		}
	}
	return err
}
