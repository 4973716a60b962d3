// Package journal writes the events of a program to systemd's journal, by its native protocol.
//
// Without a journal socket the lines go to standard error, so that nothing is lost.
// No secret may enter a message: callers pass objects, never credentials.
package journal

import (
	"fmt"
	"io"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/coreos/go-systemd/v22/journal"
)

// Names of our fields.
const (
	FieldStage    = "UNBOUNDED_STAGE"
	FieldInstall  = "UNBOUNDED_INSTALL_ID"
	FieldMachine  = "UNBOUNDED_MACHINE"
	FieldChanged  = "UNBOUNDED_CHANGED"
	FieldDuration = "UNBOUNDED_DURATION_USEC"

	// FieldUnit is the unit that an event is about: journalctl -u finds it by that too. The journal's own
	// field is missing when the program has ended before journald looks at it, as after its error line.
	FieldUnit = "OBJECT_SYSTEMD_UNIT"
)

// Log writes events that carry the fields given to With. The zero value is not useful; see New.
type Log struct {
	fields   map[string]string
	fallback io.Writer
	send     func(message string, priority journal.Priority, fields map[string]string) error
}

// New returns a log of stage ("unbounded-kernel").
func New(stage string) *Log {
	log := &Log{
		fields:   map[string]string{FieldStage: stage, "SYSLOG_IDENTIFIER": stage},
		fallback: os.Stderr,
	}
	if journal.Enabled() {
		log.send = journal.Send
	}
	return log
}

// To returns a log that writes its lines to w, for programs on a terminal and for tests.
func To(w io.Writer) *Log { return &Log{fields: map[string]string{}, fallback: w} }

// With returns a log whose events carry field too; an empty value leaves it out.
func (l *Log) With(field, value string) *Log {
	if value == "" {
		return l
	}
	fields := maps.Clone(l.fields)
	fields[field] = value
	return &Log{fields: fields, fallback: l.fallback, send: l.send}
}

// Changed reports that object (a path, a unit, a key) was changed.
func (l *Log) Changed(object, how string) {
	l.With(FieldChanged, object).event(Changed, journal.PriInfo, object+": "+how)
}

// Info reports progress worth keeping.
func (l *Log) Info(format string, args ...any) {
	l.event(Progress, journal.PriInfo, fmt.Sprintf(format, args...))
}

// Notice reports what the operator should know and need not act on.
func (l *Log) Notice(format string, args ...any) {
	l.event(Notice, journal.PriNotice, fmt.Sprintf(format, args...))
}

// Warn reports what we live with.
func (l *Log) Warn(format string, args ...any) {
	l.event(Warning, journal.PriWarning, fmt.Sprintf(format, args...))
}

// Done reports the end of a stage that took d.
func (l *Log) Done(d time.Duration, message string) {
	l.With(FieldDuration, strconv.FormatInt(d.Microseconds(), 10)).event(Done, journal.PriInfo, message)
}

// Error reports why the program ends, once, at its outermost place.
func (l *Log) Error(id ID, err error) { l.event(id, journal.PriErr, Line(err)) }

// Line is the text of err in one line, also of one that several were joined to.
func Line(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (l *Log) event(id ID, priority journal.Priority, message string) {
	if l.send != nil {
		fields := maps.Clone(l.fields)
		fields["MESSAGE_ID"] = string(id)
		if l.send(message, priority, fields) == nil {
			return
		}
	}
	_, _ = fmt.Fprintln(l.fallback, message) // nobody is left to tell
}

// Status shows what is being waited for in `systemctl status`. Outside a unit it does nothing.
func (l *Log) Status(format string, args ...any) {
	_, _ = daemon.SdNotify(false, "STATUS="+fmt.Sprintf(format, args...)) // a lost status is no failure
}
