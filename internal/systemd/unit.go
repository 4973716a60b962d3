package systemd

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
)

// Properties are those properties of a unit that our programs read. What a unit's type
// does not have is zero. A unit that is not there has LoadState "not-found" and ActiveState "inactive".
type Properties struct {
	ActiveState    string // active, activating, deactivating, failed, inactive, reloading, maintenance
	SubState       string
	LoadState      string // loaded, not-found, masked, bad-setting, error
	UnitFileState  string // enabled, disabled, static, masked, …
	FragmentPath   string
	SourcePath     string   // the file a generator made the unit from
	DropInPaths    []string // as loaded: what came since needs Reload
	StatusText     string
	ControlGroup   string // "" while nothing runs
	InvocationID   string // of the last start, hex; "" if there was none since the unit was loaded
	Result         string // success, exit-code, signal, timeout, oom-kill, …
	ExecMainCode   int32  // of waitid: 1 exited, 2 killed, 3 dumped; 0 never ran
	ExecMainStatus int32  // exit status, or signal
	MainPID        uint32
	NRestarts      uint32
	Job            uint32 // 0 if no job is queued
	// ConditionResult is whether the conditions held at the last start; false also when there was none.
	ConditionResult bool
	// NeedDaemonReload is that files of the unit have changed; a drop-in in a new folder does not show.
	NeedDaemonReload bool
	StartedAt        time.Time // of the main process; zero if it never was
	BegunAt          time.Time // when the unit ceased to be inactive; zero if it never did
	EndedAt          time.Time // when the unit became inactive or failed; zero if it never was

	conditionsAt uint64 // when the conditions were last looked at, monotonic µs
}

// Runs tells whether the unit is anything but inactive or failed, or has a job that will change that.
func (p *Properties) Runs() bool {
	return p.ActiveState != "inactive" && p.ActiveState != "failed" || p.Job != 0
}

// Properties reads unit, loading it if need be. A unit that does not exist is no error.
// The results of a finished oneshot are there only while something refers to it: see Start.
func (m *Manager) Properties(ctx context.Context, unit string) (Properties, error) {
	var p Properties
	err := m.do(ctx, func(ctx context.Context, s *session) error {
		all, err := s.units.GetAllPropertiesContext(ctx, unit)
		if err == nil {
			p = fromBus(all)
		}
		return err
	})
	if err != nil {
		return Properties{}, fmt.Errorf("read properties of %s: %w", unit, err)
	}
	return p, nil
}

func fromBus(all map[string]any) Properties {
	p := Properties{
		ActiveState: get[string](all, "ActiveState"), SubState: get[string](all, "SubState"),
		LoadState: get[string](all, "LoadState"), UnitFileState: get[string](all, "UnitFileState"),
		FragmentPath: get[string](all, "FragmentPath"), SourcePath: get[string](all, "SourcePath"),
		DropInPaths: get[[]string](all, "DropInPaths"), StatusText: get[string](all, "StatusText"),
		ControlGroup: get[string](all, "ControlGroup"), InvocationID: hex.EncodeToString(get[[]byte](all, "InvocationID")),
		Result: get[string](all, "Result"), ExecMainCode: get[int32](all, "ExecMainCode"),
		ExecMainStatus: get[int32](all, "ExecMainStatus"), MainPID: get[uint32](all, "MainPID"),
		NRestarts: get[uint32](all, "NRestarts"), ConditionResult: get[bool](all, "ConditionResult"),
		NeedDaemonReload: get[bool](all, "NeedDaemonReload"),
		StartedAt:        moment(all, "ExecMainStartTimestamp"), BegunAt: moment(all, "InactiveExitTimestamp"),
		EndedAt: moment(all, "InactiveEnterTimestamp"), conditionsAt: get[uint64](all, "ConditionTimestampMonotonic"),
	}
	if job := get[[]any](all, "Job"); len(job) > 0 { // (id, path)
		p.Job, _ = job[0].(uint32)
	}
	return p
}

// get is the value of key if it has type T; not every type of unit has every property.
func get[T any](all map[string]any, key string) T {
	value, _ := all[key].(T)
	return value
}

// moment is the value of a timestamp in microseconds.
func moment(all map[string]any, key string) time.Time {
	if at := get[uint64](all, key); at != 0 {
		return time.UnixMicro(int64(at))
	}
	return time.Time{}
}

// UnitFileState is how unit is enabled: "enabled", "disabled", "static", "masked" and so on.
// ErrNoUnit is in the chain when there is no unit file.
func (m *Manager) UnitFileState(ctx context.Context, unit string) (state string, err error) {
	err = m.do(ctx, func(ctx context.Context, s *session) error {
		return s.manager(ctx, "GetUnitFileState", unit).Store(&state)
	})
	if err != nil {
		return "", fmt.Errorf("read how %s is enabled: %w", unit, err)
	}
	return state, nil
}

// Enable makes unit start at boot as its [Install] section says, and tells whether links were made.
// Like Disable it reloads nothing.
func (m *Manager) Enable(ctx context.Context, unit string) (changed bool, err error) {
	err = m.do(ctx, func(ctx context.Context, s *session) error {
		_, changes, err := s.units.EnableUnitFilesContext(ctx, []string{unit}, false, false)
		changed = changed || len(changes) > 0
		return err
	})
	if err != nil {
		return false, fmt.Errorf("enable %s: %w", unit, err)
	}
	return changed, nil
}

// Disable removes the links of Enable from the host's disk and tells whether there were any. When that fails
// it is done only if systemd positively says that unit cannot start at boot; the links of a unit whose
// file is not there are then left.
func (m *Manager) Disable(ctx context.Context, unit string) (changed bool, err error) {
	err = m.do(ctx, func(ctx context.Context, s *session) error {
		changes, err := s.units.DisableUnitFilesContext(ctx, []string{unit}, false)
		for _, change := range changes { // that a unit is masked is listed too
			changed = changed || change.Type == "unlink"
		}
		return err
	})
	if err == nil {
		return changed, nil
	}
	err = fmt.Errorf("disable %s: %w", unit, err)
	// The manager's method reads the disk; its property may be older.
	state, asked := m.UnitFileState(ctx, unit)
	if asked != nil && !errors.Is(asked, ErrNoUnit) {
		return changed, fmt.Errorf("%w, and it cannot be told whether it starts at boot: %w", err, asked)
	}
	p, asked := m.Properties(ctx, unit)
	if asked == nil && p.NeedDaemonReload { // a unit whose file was removed, by a run that was killed, say, is loaded until then
		if asked = m.Reload(ctx); asked == nil {
			p, asked = m.Properties(ctx, unit)
		}
	}
	switch {
	case asked != nil:
		return changed, fmt.Errorf("%w, and it cannot be told whether it starts at boot: %w", err, asked)
	case !neverAtBoot(state, p.LoadState):
		return changed, fmt.Errorf("%w, and systemd says that it is %q (%s)", err, state, p.LoadState)
	}
	return changed, nil
}

// neverAtBoot tells whether a unit with these states cannot start at boot by itself. A mask for this boot is
// gone at the next.
func neverAtBoot(unitFileState, loadState string) bool {
	switch unitFileState {
	case "disabled", "not-found", "masked", "static", "indirect":
		return true
	}
	return unitFileState == "" && loadState == "not-found"
}

// Kill sends signal to all processes of unit, those of a machine included. No unit, and one without
// processes, is done too.
func (m *Manager) Kill(ctx context.Context, unit string, signal syscall.Signal) error {
	err := m.do(ctx, func(ctx context.Context, s *session) error {
		return s.units.KillUnitWithTarget(ctx, unit, sd.All, int32(signal))
	})
	if err != nil && !errors.Is(err, ErrNoUnit) && errorName(err) != "org.freedesktop.systemd1.NoSuchProcess" {
		return fmt.Errorf("kill %s: %w", unit, err)
	}
	return nil
}

// Reload is daemon-reload.
func (m *Manager) Reload(ctx context.Context) error {
	err := m.do(ctx, func(ctx context.Context, s *session) error { return s.units.ReloadContext(ctx) })
	if err != nil {
		return fmt.Errorf("reload systemd: %w", err)
	}
	return nil
}

// ResetFailed forgets the failures of unit and its start counter. A unit that is not loaded has none.
func (m *Manager) ResetFailed(ctx context.Context, unit string) error {
	err := m.do(ctx, func(ctx context.Context, s *session) error {
		return s.units.ResetFailedUnitContext(ctx, unit)
	})
	if err != nil && !errors.Is(err, ErrNoUnit) {
		return fmt.Errorf("reset failures of %s: %w", unit, err)
	}
	return nil
}
