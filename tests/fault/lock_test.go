//go:build host || fault

package fault

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"unbounded/internal/exit"
	"unbounded/internal/paths"
)

// holder is somebody who has the lifecycle lock.
type holder struct {
	name string
	take string // a script that takes it and leaves a process id in $pid
	says string // what names the holder
}

// letGo ends every holder.
const letGo = "pkill -KILL -fx 'sleep 86399'; pkill -KILL -x flock; while pgrep -fx 'sleep 86399' || pgrep -x flock; do :; done >/dev/null"

func holders() []holder {
	const take = "setsid flock --exclusive " + paths.Lock + " "
	const held = "until pgrep -fx 'sleep 86399'; do sleep 0.05; done >/dev/null; "
	return []holder{
		{"running", take + "sleep 86399 & " + held + "pid=$(pgrep -x flock)", "flock"},
		{"stopped", take + "sleep 86399 & " + held + "pid=$(pgrep -x flock); kill -STOP $pid $(pgrep -fx 'sleep 86399')", "flock"},
		{"dead, but its child lives on", take + "sh -c 'sleep 86399 & :' </dev/null; " + held + "pid=$(pgrep -fx 'sleep 86399')", "sleep"},
	}
}

// A lock that somebody holds is told by name; nothing is changed; when it is free the same run does its work.
func TestLock(t *testing.T) {
	if !wanted("lock") {
		t.Skip("other rows are wanted")
	}
	s := hostScene(t)
	forward := [][]string{{"admission", "admit"}, {"kernel", "converge"}, {"network", "converge"}, {"nftables", "converge"}, {"conflicts", "converge"}}
	count, bad := 0, 0
	began := time.Now()
	for _, h := range holders() {
		t.Run(strings.ReplaceAll(h.name, " ", "_"), func(t *testing.T) {
			s.reset(t)
			pid := strings.TrimSpace(s.MustRun(t, "{ "+h.take+"; } >/dev/null 2>&1; echo $pid"))
			defer s.Run(t, letGo)
			w := s.world(s.all)
			before, err := w.take()
			if err != nil {
				t.Fatal(err)
			}
			check := func(args []string) {
				count++
				got := s.run(t, append([]string{program(args[0])}, args[1:]...))
				if got.Exit != int(exit.Held) || !strings.Contains(got.output, h.says) || !strings.Contains(got.output, pid) {
					bad++
					t.Errorf("%s: exit %d: %s; want %d and %s %s", args, got.Exit, got.output, exit.Held, h.says, pid)
				}
			}
			for _, args := range forward {
				check(args)
			}
			if full || h.name == "stopped" { // reset waits for half a minute
				check([]string{"reset", "begin"})
			}
			after, err := w.take()
			if err != nil {
				t.Fatal(err)
			}
			if diff := differences(before, after); len(diff) > 0 {
				bad++
				t.Errorf("changed:\n%s", strings.Join(diff, "\n"))
			}
			s.MustRun(t, letGo)
			for _, args := range [][]string{{"admission", "admit"}, {"network", "converge"}, {"reset", "begin"}, {"network", "remove"}} {
				s.plain(t, args[0], args[1:]...)
			}
		})
	}
	t.Run("a stage that hangs", func(t *testing.T) {
		s.reset(t)
		count++
		bad += hanging(t, s)
	})
	tell(t, fmt.Sprintf("fault: lock: %d points, %d exceptions, %.1f s\n", count, bad, time.Since(began).Seconds()))
}

// hanging holds a stage in the middle of its work: a reset waits for it, gives up and says for whom; the stage then
// ends well, and so does the next reset.
func hanging(t *testing.T, s *scene) (bad int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	stage := s.Command(ctx, injectPath, "--do", "hold", "--at", "6", "--", program("network"), "converge")
	out, err := stage.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stage.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the stage does not hang")
	}
	// Other stages go on beside it.
	var side sync.WaitGroup
	side.Go(func() {
		if got := s.Run(t, program("nftables")+" converge"); got.Code != 0 {
			t.Errorf("a stage beside: %d: %s", got.Code, s.cause())
		}
	})
	side.Wait()
	if got := s.run(t, []string{program("reset"), "begin"}); got.Exit != int(exit.Held) || !strings.Contains(got.output, "unbounded-") {
		bad++
		t.Errorf("reset beside a stage that hangs: exit %d: %s", got.Exit, got.output)
	}
	s.MustRun(t, "pkill -USR1 -x inject")
	var end report
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &end) != nil || end.Exit != 0 {
		bad++
		t.Errorf("the stage, let go: %+v", end)
	}
	if err := stage.Wait(); err != nil {
		t.Errorf("the stage, let go: %v", err)
	}
	s.plain(t, "reset", "begin")
	return bad
}
