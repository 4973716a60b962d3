// Package follow starts a target of ours, or meets one that is being started, and tells what its stages do
// until it has ended.
//
// It looks at the states of the units again and again: states survive a re-exec of systemd and a restart of
// the bus, signals do not. Whoever ends the following ends that alone; the jobs are PID 1's.
package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"unbounded/internal/systemd"
)

// interval is between two looks.
const interval = 200 * time.Millisecond

// Kind is what a stage does.
type Kind int

// The kinds, in the order in which a stage has them. It may tell more than once what it is doing.
const (
	Begun Kind = iota
	Doing
	Done
	Failed
)

// Event is one thing that a stage has done.
type Event struct {
	Kind  Kind
	Unit  string
	Text  string             // of Doing: the unit's status
	Took  time.Duration      // of Done and Failed
	State systemd.Properties // of the unit then
}

// Manager starts units and looks at them; see *systemd.Manager.
type Manager interface {
	Start(ctx context.Context, unit string) (systemd.Properties, error)
	Properties(ctx context.Context, unit string) (systemd.Properties, error)
}

// Watch looks at all stages, in their order; see *systemd.Watch.
type Watch interface {
	Look(ctx context.Context) ([]systemd.Properties, error)
}

// Target is what is followed.
type Target struct {
	Unit   string
	Stages []string // in start order; Watch looks at these
}

// Run starts the target, unless that is under way already, and gives tell every event until the target has ended.
// Failed are the events of stages that failed. An error is that of a start without such a stage, or of a
// loss of sight; when ctx ends it is ctx's.
func (t Target) Run(ctx context.Context, manager Manager, watch Watch, tell func(Event)) (failed []Event, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	target, err := manager.Properties(ctx, t.Unit)
	if err != nil {
		return nil, err
	}
	was, err := watch.Look(ctx)
	if err != nil {
		return nil, err
	}
	stages := make([]stage, len(t.Stages))
	for i, unit := range t.Stages {
		stages[i] = stage{unit: unit, invocation: was[i].InvocationID}
		if target.Job != 0 && !was[i].BegunAt.Before(was[0].BegunAt) { // begun in this start, which we meet
			stages[i].invocation = ""
		}
	}
	look := func() error {
		now, err := watch.Look(ctx)
		for i := range now {
			for _, event := range stages[i].see(now[i]) {
				tell(event)
				if event.Kind == Failed {
					failed = append(failed, event)
				}
			}
		}
		return err
	}
	ended := make(chan error, 1)
	go func() {
		if target.Job == 0 {
			_, err := manager.Start(ctx, t.Unit)
			ended <- err
			return
		}
		ended <- t.await(ctx, manager)
	}()
	err = until(ended, look)
	switch last := stages[len(stages)-1]; {
	case len(failed) > 0:
		return failed, nil
	case last.ended: // whatever became of the job's result: systemd or its bus may have been started again
		return nil, nil
	case err == nil && target.Job != 0:
		return nil, fmt.Errorf("%s ended before all its stages had run: somebody stopped it", t.Unit)
	}
	return nil, err
}

// until looks until the end, and once more. When it is lost sight of the error is why.
func until(ended <-chan error, look func() error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return errors.Join(err, look())
		case <-tick.C:
			if err := look(); err != nil {
				return err
			}
		}
	}
}

// await waits until the target has no job any more.
func (t Target) await(ctx context.Context, manager Manager) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		now, err := manager.Properties(ctx, t.Unit)
		if err != nil || now.Job == 0 {
			return err
		}
	}
}

// stage is what was told of one.
type stage struct {
	unit       string
	invocation string // the last that was seen
	told       bool   // that it has begun
	doing      string
	ended      bool
}

// see compares a stage with what was told of it. One that has begun twice between two looks is told of once.
func (s *stage) see(now systemd.Properties) (events []Event) {
	add := func(kind Kind, text string, took time.Duration) {
		events = append(events, Event{kind, s.unit, text, took, now})
	}
	if now.InvocationID == "" { // systemd has forgotten it
		return nil
	}
	if now.InvocationID != s.invocation {
		*s = stage{unit: s.unit, invocation: now.InvocationID, told: true}
		add(Begun, "", 0)
	}
	if !s.told || s.ended {
		return events
	}
	if now.StatusText != "" && now.StatusText != s.doing {
		s.doing = now.StatusText
		add(Doing, s.doing, 0)
	}
	if now.ActiveState != "inactive" && now.ActiveState != "failed" {
		return events
	}
	s.ended = true
	kind := Done
	if now.ActiveState == "failed" || now.Result != "success" {
		kind = Failed
	}
	add(kind, "", now.EndedAt.Sub(now.BegunAt))
	return events
}
