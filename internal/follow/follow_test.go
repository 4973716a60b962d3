package follow

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/systemd"
)

// film is a host whose units are seen frame by frame; the start ends with the last.
type film struct {
	frames [][]systemd.Properties
	job    uint32 // of the target, until the last frame
	end    error
	starts int
	done   chan struct{}
	at     int
}

func (f *film) Look(ctx context.Context) ([]systemd.Properties, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	frame := f.frames[f.at]
	if f.at < len(f.frames)-1 {
		f.at++
		if f.at == len(f.frames)-1 {
			close(f.done)
		}
	}
	return frame, nil
}

func (f *film) Properties(context.Context, string) (systemd.Properties, error) {
	select {
	case <-f.done:
		return systemd.Properties{}, nil
	default:
		return systemd.Properties{Job: f.job}, nil
	}
}

func (f *film) Start(ctx context.Context, _ string) (systemd.Properties, error) {
	f.starts++
	select {
	case <-f.done:
		return systemd.Properties{}, f.end
	case <-ctx.Done():
		return systemd.Properties{}, ctx.Err()
	}
}

var target = Target{"t.target", []string{"a.service", "b.service"}}

func at(seconds int) time.Time { return time.Unix(int64(seconds), 0) }

func idle(invocation string) systemd.Properties {
	return systemd.Properties{ActiveState: "inactive", InvocationID: invocation, Result: "success", BegunAt: at(1), EndedAt: at(2)}
}

func runs(invocation, doing string) systemd.Properties {
	return systemd.Properties{ActiveState: "activating", InvocationID: invocation, Result: "success", StatusText: doing, BegunAt: at(10)}
}

func ended(invocation, state string) systemd.Properties {
	p := systemd.Properties{ActiveState: state, InvocationID: invocation, Result: "success", BegunAt: at(10), EndedAt: at(13)}
	if state == "failed" {
		p.Result = "exit-code"
	}
	return p
}

func TestRun(t *testing.T) {
	never := systemd.Properties{ActiveState: "inactive"}
	type frames = [][]systemd.Properties
	for _, test := range []struct {
		name   string
		film   film
		want   []string
		failed []string
		says   string
	}{
		{
			name: "all well",
			film: film{frames: frames{
				{never, never},
				{runs("a1", ""), never},
				{runs("a1", "stops x"), never},
				{ended("a1", "inactive"), runs("b1", "")},
				{ended("a1", "inactive"), ended("b1", "inactive")},
			}},
			want: []string{"a begun", "a doing stops x", "a done 3s", "b begun", "b done 3s"},
		},
		{
			name: "seen only when they had ended",
			film: film{frames: frames{{idle("a0"), idle("b0")}, {ended("a1", "inactive"), ended("b1", "inactive")}}},
			want: []string{"a begun", "a done 3s", "b begun", "b done 3s"},
		},
		{
			name: "the first fails; the other still shows an earlier failure",
			film: film{frames: frames{{never, ended("b0", "failed")}, {ended("a1", "failed"), ended("b0", "failed")}}, end: errors.New("dependency")},
			want: []string{"a begun", "a failed 3s"}, failed: []string{"a.service"},
		},
		{
			name: "it cannot be started",
			film: film{frames: frames{{never, never}, {never, never}}, end: systemd.ErrNoUnit}, says: "no such unit",
		},
		{
			name: "met in the middle",
			film: film{job: 7, frames: frames{
				{ended("a1", "inactive"), idle("b0")}, {ended("a1", "inactive"), runs("b1", "")}, {ended("a1", "inactive"), ended("b1", "inactive")},
			}},
			want: []string{"a begun", "a done 3s", "b begun", "b done 3s"},
		},
		{
			name: "met, and then stopped by somebody",
			film: film{job: 7, frames: frames{{ended("a1", "inactive"), idle("b0")}, {ended("a1", "inactive"), idle("b0")}}},
			want: []string{"a begun", "a done 3s"}, says: "somebody stopped it",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.film.done = make(chan struct{})
				var got []string
				failed, err := target.Run(t.Context(), &test.film, &test.film, func(e Event) {
					text := strings.TrimSuffix(e.Unit, ".service") + " " + [...]string{"begun", "doing", "done", "failed"}[e.Kind]
					if e.Text != "" {
						text += " " + e.Text
					}
					if e.Kind >= Done {
						text += " " + e.Took.String()
					}
					got = append(got, text)
				})
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				var names []string
				for _, event := range failed {
					names = append(names, event.Unit)
				}
				if !slices.Equal(names, test.failed) {
					t.Errorf("failed = %q, want %q", names, test.failed)
				}
				if (err != nil) != (test.says != "") || err != nil && !strings.Contains(err.Error(), test.says) {
					t.Errorf("Run() = %v, want %q", err, test.says)
				}
				if want := 1; test.film.job == 0 && test.film.starts != want || test.film.job != 0 && test.film.starts != 0 {
					t.Errorf("started %d times", test.film.starts)
				}
			})
		})
	}
}

func TestRunEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &film{frames: [][]systemd.Properties{{runs("a", ""), runs("b", "")}, {runs("a", ""), runs("b", "")}, {}}, done: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := target.Run(ctx, f, f, func(Event) {}); !errors.Is(err, context.Canceled) {
			t.Errorf("Run() = %v, want the end of the context", err)
		}
	})
}
