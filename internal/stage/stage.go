// Package stage is the frame of every helper: lock, install record, admitted
// configuration, journal, signals, the failure file and the exit status, and nothing else.
package stage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"unbounded/internal/config"
	"unbounded/internal/exit"
	"unbounded/internal/failure"
	"unbounded/internal/journal"
	"unbounded/internal/lock"
	"unbounded/internal/paths"
	"unbounded/internal/proc"
	"unbounded/internal/record"
)

// Env is what a stage works with.
type Env struct {
	Root   string         // "/" on a host; a test's own root otherwise
	Slot   string         // kube1 or kube2 for template units, otherwise empty
	Record record.Record  // as it was when the stage began; zero where the stage needs none
	Config *config.Config // what this attempt was admitted with; nil where the stage needs none
	Log    *journal.Log
}

// Func makes one concern true. It is right to call it again; it returns its error and does not log it.
type Func func(ctx context.Context, env *Env) error

// Needs says under which record a verb may run. The record is read with the lock held.
type Needs int

// The kinds of verbs.
const (
	// Installing: the record's phase is installing and the admitted configuration is its own.
	// When another start has completed the installation meanwhile there is nothing to do.
	Installing Needs = iota
	// Completed: the phase is complete. Config is nil.
	Completed
	// LockOnly: the verb looks at the record itself (admission, completion).
	LockOnly
	// Unlocked: the verb takes the lock itself (the beginning of a reset).
	Unlocked
	// Resetting: the phase is resetting, and the lock is held exclusively. It is waited for: a stage of
	// a start that comes in between holds it while it refuses, the daemon until it has let go. Config is nil.
	Resetting
)

// patience is how long a verb of reset waits for the lock.
const patience = 30 * time.Second

// Verb is one thing a program can be told to do.
type Verb struct {
	Needs Needs
	Do    Func
}

// Main runs a helper with the verbs converge and remove and ends the process. A helper that leaves nothing
// on the host has a nil remove, and no such verb.
func Main(name string, converge, remove Func) {
	verbs := map[string]Verb{"converge": {Installing, converge}}
	if remove != nil {
		verbs["remove"] = Verb{Resetting, remove}
	}
	MainVerbs(name, verbs)
}

// MainComplete runs a helper for complete hosts, with the one verb verify, and ends the process.
func MainComplete(name string, verify Func) {
	MainVerbs(name, map[string]Verb{"verify": {Completed, verify}})
}

// MainVerbs runs a helper that has verbs of its own and ends the process.
func MainVerbs(name string, verbs map[string]Verb) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	log := journal.New(name).With(journal.FieldUnit, proc.Unit("/proc", os.Getpid()))
	program := Program{Name: name, Verbs: verbs, Root: "/", Log: log}
	status := program.Run(ctx, os.Args[1:])
	stop()
	os.Exit(int(status))
}

// Program is a helper with its surroundings.
type Program struct {
	Name  string
	Verbs map[string]Verb
	Root  string
	Log   *journal.Log
}

// Run does the verb that args name (VERB [SLOT]) and returns the exit status. It logs the end, once.
func (p *Program) Run(ctx context.Context, args []string) exit.Status {
	began := time.Now()
	env := &Env{Root: p.Root, Log: p.Log}
	verb, err := p.parse(args, env)
	if err == nil {
		err = p.locked(ctx, verb, env)
	}
	if err == nil {
		env.Log.Done(time.Since(began), "done")
		return exit.OK
	}
	p.report(ctx, env, err)
	return exit.Of(err)
}

func (p *Program) parse(args []string, env *Env) (Verb, error) {
	usage := exit.As(exit.Usage, fmt.Errorf("usage: %s VERB [kube1|kube2]", p.Name))
	if len(args) < 1 || len(args) > 2 {
		return Verb{}, usage
	}
	verb, ok := p.Verbs[args[0]]
	if !ok {
		return Verb{}, usage
	}
	if len(args) == 2 {
		if !paths.IsSlot(args[1]) {
			return Verb{}, exit.As(exit.Usage, fmt.Errorf("machine %q: want kube1 or kube2", args[1]))
		}
		env.Slot = args[1]
		env.Log = env.Log.With(journal.FieldMachine, env.Slot)
	}
	return verb, nil
}

// locked runs the verb with the lifecycle lock held: shared, stages run side by side and reset and
// the daemon keep out; exclusive for a stage of reset.
func (p *Program) locked(ctx context.Context, verb Verb, env *Env) (err error) {
	if verb.Needs == Unlocked {
		return verb.Do(ctx, env)
	}
	held, err := p.take(ctx, verb)
	if err != nil {
		var other *lock.HeldError
		switch {
		case errors.As(err, &other):
			return exit.As(exit.Held, err)
		case errors.Is(err, fs.ErrPermission):
			return exit.As(exit.NotPermitted, fmt.Errorf("%w; run as root", err))
		}
		return err
	}
	defer func() { err = errors.Join(err, held.Release()) }()

	goOn, err := p.prepare(verb, env)
	if err != nil || !goOn {
		return err
	}
	return verb.Do(ctx, env)
}

func (p *Program) take(ctx context.Context, verb Verb) (*lock.Lock, error) {
	if verb.Needs != Resetting {
		return lock.Take(p.Root, lock.Shared)
	}
	return lock.Wait(ctx, p.Root, lock.Exclusive, patience, func(other *lock.HeldError) {
		p.Log.Status("waiting for the lock: %v", other)
	})
}

// prepare reads record and configuration and says whether there is anything to do.
func (p *Program) prepare(verb Verb, env *Env) (bool, error) {
	if verb.Needs == LockOnly {
		return true, nil
	}
	r, err := record.Open(p.Root).Load()
	if verb.Needs == Resetting && errors.Is(err, record.ErrNone) {
		env.Log.Info("no install record: this host is nobody's, nothing to do") // another reset has ended
		return false, nil
	}
	if err != nil {
		return false, refuseRecord(verb, err)
	}
	env.Record = r
	env.Log = env.Log.With(journal.FieldInstall, r.InstallID)
	switch {
	case verb.Needs == Resetting && r.Phase != record.Resetting:
		return false, exit.As(exit.Refused, fmt.Errorf("no reset of this host has begun: start %s, not its stages", paths.ResetTarget))
	case verb.Needs == Resetting:
		return true, nil
	case r.Phase == record.Resetting:
		return false, record.RefuseResetting()
	case verb.Needs == Completed && r.Phase == record.Installing:
		return false, exit.As(exit.Refused, fmt.Errorf("the installation is not complete: start %s", paths.Target))
	case verb.Needs == Completed:
		return true, nil
	case r.Phase == record.Complete:
		env.Log.Info("another start has completed the installation, nothing to do")
		return false, nil
	}
	env.Config, err = admitted(p.Root, r)
	return err == nil, err
}

// refuseRecord is what a stage says without a record that it can use.
func refuseRecord(verb Verb, err error) error {
	if verb.Needs == Resetting && errors.Is(err, record.ErrInvalid) {
		return exit.As(exit.Refused, fmt.Errorf("%w: start %s, not its stages", err, paths.ResetTarget))
	}
	if errors.Is(err, record.ErrNone) {
		return exit.As(exit.Refused, fmt.Errorf("%w: this host is not ours; start %s", err, paths.Target))
	}
	return record.Refuse(err)
}

// admitted is the configuration that admission left for this attempt, checked against the record.
func admitted(root string, r record.Record) (*config.Config, error) {
	path := paths.At(root, paths.Admitted)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, exit.As(exit.Refused, fmt.Errorf("%s is missing: start %s, not its stages", path, paths.Target))
	}
	if err != nil {
		return nil, err
	}
	host := config.ReadHost(root)
	identity, err := config.ParseIdentity(data, host)
	if err != nil {
		return nil, err
	}
	if identity.MachineName != r.MachineName || identity.Fingerprint() != r.ConfigFingerprint {
		return nil, exit.As(exit.Refused, fmt.Errorf("%s is of another installation than the install record: start %s again", path, paths.Target))
	}
	return config.Parse(data, host)
}

// report logs why the program ends and leaves it for whoever started the target.
func (p *Program) report(ctx context.Context, env *Env, err error) {
	status := exit.Of(err)
	id := journal.Failed
	switch {
	case ctx.Err() != nil:
		env.Log.Error(journal.Canceled, fmt.Errorf("stopped: %w", err))
		return // the one who stopped us knows why
	case status == exit.Refused || status == exit.Usage || status == exit.NotPermitted:
		id = journal.Refused
	case status == exit.Held:
		id = journal.Held
	}
	env.Log.Error(id, err)
	if status == exit.Usage {
		return
	}
	f := failure.Failure{
		Stage: p.Name, Unit: proc.Unit("/proc", os.Getpid()), Cause: journal.Line(err), Status: int(status),
		Time: time.Now(), InvocationID: os.Getenv("INVOCATION_ID"), InstallID: env.Record.InstallID,
	}
	if err := failure.Write(p.Root, f); err != nil {
		env.Log.Warn("write %s: %v, ignoring", filepath.Base(paths.LastFailure), err)
	}
}
