//go:build fault

package fault

import (
	"fmt"
	"strings"
	"testing"
)

// sysctls are live kernel parameters, as globs below /proc/sys.
type sysctls []string

func (a sysctls) look(t *testing.T, s *scene) string {
	t.Helper()
	return s.MustRun(t, "cd /proc/sys && grep . "+strings.Join(a, " "))
}

func (a sysctls) set(t *testing.T, s *scene, was, now string) {
	t.Helper()
	have := map[string]bool{}
	for line := range strings.Lines(now) {
		have[line] = true
	}
	// ip_forward drags others along; so it is first, and everything is looked at again.
	var first, others strings.Builder
	for line := range strings.Lines(was) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		script := fmt.Sprintf("echo '%s' >%s\n", value, name)
		switch {
		case have[line]:
		case strings.HasSuffix(name, "/ip_forward"):
			first.WriteString(script)
		default:
			others.WriteString(script)
		}
	}
	s.MustRun(t, "cd /proc/sys && "+first.String()+others.String()+"true")
	if again := a.look(t, s); again != was && again != now {
		a.set(t, s, was, again)
	}
}

// ruleset is the packet filter.
type ruleset struct{}

func (ruleset) look(t *testing.T, s *scene) string {
	t.Helper()
	return s.MustRun(t, "nft list ruleset")
}

func (ruleset) set(t *testing.T, s *scene, was, _ string) {
	t.Helper()
	s.MustRun(t, "nft -f - <<'END'\nflush ruleset\n"+was+"\nEND\n")
}

// running is which units run.
type running []string

func (a running) look(t *testing.T, s *scene) string {
	t.Helper()
	return s.MustRun(t, "systemctl show -p Id,ActiveState,NeedDaemonReload,UnitFileState "+strings.Join(a, " "))
}

func (a running) set(t *testing.T, s *scene, was, now string) {
	t.Helper()
	script := "systemctl daemon-reload\n"
	states, have := strings.Split(was, "\n\n"), strings.Split(now, "\n\n")
	for i, unit := range a {
		if i < len(have) && states[i] == have[i] {
			continue
		}
		verb := "stop"
		if strings.Contains(states[i], "ActiveState=active") {
			verb = "start"
		}
		script += "systemctl " + verb + " '" + unit + "'\n"
	}
	s.MustRun(t, script)
	if again := a.look(t, s); again != was {
		t.Fatalf("units are\n%s\nwant\n%s", again, was)
	}
}
