package membership

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"unbounded/internal/apiserver"
	"unbounded/internal/diagnosis"
	"unbounded/internal/journal"
	"unbounded/internal/kube"
	"unbounded/internal/systemd"
)

type api struct{ err error }

func (a api) Requests(context.Context) ([]kube.Request, error) { return nil, a.err }
func (a api) HasNode(context.Context, string) (bool, error)    { return false, a.err }

// waiting is a wait whose cluster answers err, or with nothing.
func waiting(err error) *Wait {
	return &Wait{
		slot: "kube1", log: journal.To(io.Discard),
		doctor: &diagnosis.Doctor{
			Slot: "kube1", Node: "n", Bootstrap: api{err}, LastWords: func(context.Context) string { return "" },
			Unit: func(context.Context) (systemd.Properties, error) {
				return systemd.Properties{ActiveState: "active"}, nil
			},
		},
	}
}

func TestUntil(t *testing.T) {
	rejected := &apiserver.Error{Kind: apiserver.Rejected, Server: "https://api", Err: errors.New("Unauthorized")}
	unreachable := &apiserver.Error{Kind: apiserver.Unreachable, Server: "https://api", Err: errors.New("refused")}
	limit := errors.New("the node has not joined within 1m0s")
	for _, test := range []struct {
		name  string
		api   error
		event time.Duration // when what is waited for happens; 0: never
		took  time.Duration
		want  []string
	}{
		{"there already", nil, -1, 0, nil},
		{"event", unreachable, 7 * time.Second, 7 * time.Second, nil},
		{"hopeless before the limit", rejected, 0, 10 * time.Second, []string{"bootstrap token is rejected"}},
		{"waited for until the limit", unreachable, 0, time.Minute, []string{limit.Error(), "unreachable", "refused"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, limit)
				defer cancel()
				began := time.Now()
				events := make(chan struct{}, 1)
				if test.event > 0 {
					time.AfterFunc(test.event, func() { events <- struct{}{} })
				}
				err := waiting(test.api).until(ctx, events, func(diagnosis.Finding) (bool, error) {
					return test.event != 0 && time.Since(began) >= test.event, nil
				})
				if (err == nil) != (test.want == nil) || time.Since(began) != test.took {
					t.Errorf("until: %v after %v, want %q after %v", err, time.Since(began), test.want, test.took)
				}
				for _, part := range test.want {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("until: %v, want %q in it", err, part)
					}
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		err := waiting(unreachable).until(ctx, nil, func(diagnosis.Finding) (bool, error) { return false, nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("until, stopped: %v", err)
		}
		want := errors.New("cannot be told")
		if err := waiting(nil).until(t.Context(), nil, func(diagnosis.Finding) (bool, error) { return false, want }); !errors.Is(err, want) {
			t.Errorf("until: %v, want %v", err, want)
		}
	})
}
