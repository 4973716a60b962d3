package journal

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/google/go-cmp/cmp"
)

// sent is what a log hands to journald.
type sent struct {
	Message  string
	Priority journal.Priority
	Fields   map[string]string
}

func recorder(to *[]sent) *Log {
	return &Log{
		fields:   map[string]string{FieldStage: "unbounded-x"},
		fallback: &bytes.Buffer{},
		send: func(message string, priority journal.Priority, fields map[string]string) error {
			*to = append(*to, sent{message, priority, fields})
			return nil
		},
	}
}

func TestEvents(t *testing.T) {
	var got []sent
	log := recorder(&got).With(FieldInstall, "id").With(FieldMachine, "")
	log.Changed("/etc/x", "written")
	log.Error(Refused, errors.New("no"))
	log.Notice("seen %d", 1)
	fields := func(id ID, extra ...string) map[string]string {
		f := map[string]string{FieldStage: "unbounded-x", FieldInstall: "id", "MESSAGE_ID": string(id)}
		for i := 0; i < len(extra); i += 2 {
			f[extra[i]] = extra[i+1]
		}
		return f
	}
	want := []sent{
		{"/etc/x: written", journal.PriInfo, fields(Changed, FieldChanged, "/etc/x")},
		{"no", journal.PriErr, fields(Refused)},
		{"seen 1", journal.PriNotice, fields(Notice)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// Without journald the line is not lost.
func TestFallback(t *testing.T) {
	var out bytes.Buffer
	log := To(&out)
	log.send = func(string, journal.Priority, map[string]string) error { return errors.New("no socket") }
	log.Warn("disk is slow")
	if got := out.String(); got != "disk is slow\n" {
		t.Errorf("fallback = %q", got)
	}
}

// journald drops a field with a bad name without an error.
// Two causes at once are one line: journal and operator take the second for something else.
func TestErrorIsOneLine(t *testing.T) {
	var out bytes.Buffer
	To(&out).Error(Failed, errors.Join(errors.New("remove a: busy"), errors.New("write b: full")))
	if got, want := out.String(), "remove a: busy; write b: full\n"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

func TestFieldNames(t *testing.T) {
	for _, name := range []string{FieldStage, FieldInstall, FieldMachine, FieldChanged, FieldDuration} {
		if !regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,63}$`).MatchString(name) {
			t.Errorf("%q is no name of a journal field", name)
		}
	}
}

func TestEveryEventIsDocumented(t *testing.T) {
	source, err := os.ReadFile("messages.go")
	if err != nil {
		t.Fatal(err)
	}
	ids := regexp.MustCompile(`"([0-9a-f]{32})"`).FindAllStringSubmatch(string(source), -1)
	if len(ids) == 0 {
		t.Fatal("no message ids found")
	}
	for _, file := range []string{"../../docs/reference.md", "../../units/unbounded.catalog"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if n := strings.Count(string(text), id[1]); n != 1 {
				t.Errorf("%s names %s %d times, want once", file, id[1], n)
			}
		}
	}
}
