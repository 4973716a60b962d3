package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"unbounded/internal/exit"
	"unbounded/internal/failure"
	"unbounded/internal/journal"
	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/internal/systemd"
)

// run says why the latest attempt failed. It ends when no other one has begun meanwhile: as long as this unit is
// starting, systemd merges what the failure of the next attempt asks for into the job at hand, and nobody else
// would speak for that one. What fails between the last look and the end of this program is not told of.
func run(ctx context.Context, root string, log *journal.Log) error {
	manager, err := systemd.Connect(ctx)
	if err != nil {
		return err
	}
	defer manager.Close()
	for {
		last, err := look(ctx, manager)
		if err != nil {
			return err
		}
		if err := say(root, log, last); err != nil {
			return err
		}
		now, err := began(ctx, manager)
		if err != nil || now == last.began() {
			return err
		}
	}
}

// say writes the failure of the latest attempt, if it has one that nobody has written.
func say(root string, log *journal.Log, last attempts) error {
	owner, err := record.Open(root).Load()
	all := last.latest(err == nil && owner.Phase == record.Resetting)
	if all == nil {
		return nil
	}
	note, err := failure.Read(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("%v, writing it anew", err)
	}
	end, why := unsaid(note.Time, all)
	if why == "" {
		return nil
	}
	cause := fmt.Errorf("%s %s; see `journalctl -b -u %s`", end.unit, why, end.unit)
	log.With(journal.FieldUnit, end.unit).With(journal.FieldStage, program(end.unit)).With(journal.FieldInstall, owner.InstallID).Error(journal.Failed, cause)
	return failure.Write(root, failure.Failure{
		Stage: program(end.unit), Unit: end.unit, Cause: cause.Error(), Status: status(end.Properties),
		Time: end.EndedAt, InvocationID: end.InvocationID, InstallID: owner.InstallID,
	})
}

// stage is a unit of a target as the attempt has left it.
type stage struct {
	unit string
	systemd.Properties
}

// attempts are the stages of a bootstrap and of a reset as the last of each has left them.
type attempts struct{ bootstrap, reset []stage }

func look(ctx context.Context, manager *systemd.Manager) (last attempts, err error) {
	if last.bootstrap, err = stages(ctx, manager, paths.StageUnits(paths.Slots()[0])); err != nil {
		return attempts{}, err
	}
	last.reset, err = stages(ctx, manager, paths.ResetUnits())
	return last, err
}

// latest are the stages of what began last, a bootstrap or a reset. While a reset is not over, those of
// a bootstrap are none: reset has stopped them, and those that are started say themselves that they are refused.
func (a attempts) latest(resetting bool) []stage {
	switch {
	case a.reset[0].StartedAt.After(a.bootstrap[0].StartedAt):
		return a.reset
	case resetting:
		return nil
	}
	return a.bootstrap
}

// began is when the last attempt of each kind did.
func (a attempts) began() [2]int64 {
	return [2]int64{a.bootstrap[0].StartedAt.UnixMicro(), a.reset[0].StartedAt.UnixMicro()}
}

// began reads no more than attempts.began needs: it is the last look before the end of this program.
func began(ctx context.Context, manager *systemd.Manager) ([2]int64, error) {
	var now attempts
	var err error
	if now.bootstrap, err = stages(ctx, manager, paths.StageUnits(paths.Slots()[0])[:1]); err != nil {
		return [2]int64{}, err
	}
	if now.reset, err = stages(ctx, manager, paths.ResetUnits()[:1]); err != nil {
		return [2]int64{}, err
	}
	return now.began(), nil
}

// stages are in start order: the first is the one with which every attempt begins.
func stages(ctx context.Context, manager *systemd.Manager, units []string) ([]stage, error) {
	var all []stage
	for _, unit := range units {
		p, err := manager.Properties(ctx, unit)
		if err != nil {
			return nil, err
		}
		all = append(all, stage{unit, p})
	}
	return all, nil
}

// unsaid is the first stage of this attempt that ended without being able to say why, and why it did; the
// empty text if there is none, or if a note was written at noted, in this attempt.
func unsaid(noted time.Time, all []stage) (first stage, why string) {
	began := all[0].StartedAt
	if !noted.IsZero() && !noted.Before(began) {
		return stage{}, ""
	}
	for _, s := range all {
		if s.ActiveState != "failed" || s.EndedAt.Before(began) { // not of this attempt
			continue
		}
		if text := killed(s.Properties); text != "" && (why == "" || s.EndedAt.Before(first.EndedAt)) {
			first, why = s, text
		}
	}
	return first, why
}

// hint is what to look for where systemd could not start the program of a stage.
func hint(status int32) string {
	switch status {
	case 203:
		return "/EXEC (the program is missing, or systemd may not execute it: its mode, a noexec mount, its SELinux label)"
	case 243:
		return "/CREDENTIALS (what LoadCredential= names is missing)"
	}
	return ""
}

// killed says what ended a stage that could not say it; nothing for one that ended by itself or was stopped.
func killed(p systemd.Properties) string {
	switch p.Result {
	case "timeout":
		return "was stopped: it ran longer than its TimeoutStartSec="
	case "oom-kill":
		return "was killed: the host, or the unit, is out of memory"
	case "watchdog":
		return "was killed: it did not answer its watchdog"
	case "core-dump":
		return fmt.Sprintf("crashed with signal %d", p.ExecMainStatus)
	case "signal":
		if p.ExecMainStatus == 15 || p.ExecMainStatus == 2 { // stopped before it could listen
			return ""
		}
		return fmt.Sprintf("was killed by signal %d", p.ExecMainStatus)
	case "exit-code":
		switch exit.Status(p.ExecMainStatus) {
		case exit.OK, exit.Failed, exit.Usage, exit.StandingDown, exit.Held, exit.NotPermitted, exit.Refused:
			return ""
		}
		if p.ExecMainStatus >= 200 { // systemd's own
			return fmt.Sprintf("could not be executed: status %d%s", p.ExecMainStatus, hint(p.ExecMainStatus))
		}
		return fmt.Sprintf("crashed with status %d", p.ExecMainStatus)
	case "success", "exec-condition":
		return ""
	}
	return "was not run by systemd: " + p.Result
}

// status is the exit status, or what a shell makes of the signal.
func status(p systemd.Properties) int {
	if p.ExecMainCode == 2 || p.ExecMainCode == 3 {
		return 128 + int(p.ExecMainStatus)
	}
	return int(p.ExecMainStatus)
}

// program is the name of the program that unit runs.
func program(unit string) string {
	name, _, _ := strings.Cut(strings.TrimSuffix(unit, ".service"), "@")
	return name
}
