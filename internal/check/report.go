package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"unbounded/internal/exit"
)

// Report is the document that the results make.
type Report struct {
	Status  string   `json:"status"` // ok or failed
	Checks  []Result `json:"checks"`
	Summary Summary  `json:"summary"`
}

// Summary counts the results.
type Summary struct {
	OK       int `json:"ok"`
	Warnings int `json:"warnings"`
	Errors   int `json:"errors"`
}

func ignored(name string, ignore []string) bool {
	return slices.Contains(ignore, name) || slices.Contains(ignore, "all")
}

// NewReport reports results. Errors of the ignored names ("all": every name) become
// warnings. The status is failed with an error, or with a warning if failOnWarnings.
func NewReport(results []Result, ignore []string, failOnWarnings bool) Report {
	report := Report{Status: "ok", Checks: slices.Clone(results)}
	for i := range report.Checks {
		result := &report.Checks[i]
		if result.Severity == Error && ignored(result.Name, ignore) {
			result.Severity, result.Ignored = Warning, true
		}
		switch result.Severity {
		case OK:
			report.Summary.OK++
		case Warning:
			report.Summary.Warnings++
		case Error:
			report.Summary.Errors++
		}
	}
	if report.Summary.Errors > 0 || failOnWarnings && report.Summary.Warnings > 0 {
		report.Status = "failed"
	}
	return report
}

// Of returns the results of one severity.
func (r Report) Of(severity Severity) []Result {
	var some []Result
	for _, result := range r.Checks {
		if result.Severity == severity {
			some = append(some, result)
		}
	}
	return some
}

// Err is nil without errors, and otherwise all of them on one line, with exit.Refused
// where another try cannot help with one of them.
func (r Report) Err() error {
	var lines []string
	status := exit.Failed
	for _, result := range r.Of(Error) {
		lines = append(lines, result.String())
		if result.retry == Never {
			status = exit.Refused
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return exit.As(status, errors.New(strings.Join(lines, "; ")))
}

// JSON writes the document.
func (r Report) JSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// Text writes the report for people, errors last.
func (r Report) Text(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "[preflight] %d checks: %d ok, %d warnings, %d errors\n",
		len(r.Checks), r.Summary.OK, r.Summary.Warnings, r.Summary.Errors)
	for _, result := range r.Of(Warning) {
		mark := "WARNING"
		if result.Ignored {
			mark = "IGNORED"
		}
		fmt.Fprintf(&text, "\t[%s %s]: %s\n", mark, result.Name, result.rest())
	}
	if errors := r.Of(Error); len(errors) > 0 {
		text.WriteString("[preflight] this host cannot become a node yet:\n")
		for _, result := range errors {
			fmt.Fprintf(&text, "\t[ERROR %s]: %s\n", result.Name, result.rest())
		}
		text.WriteString("[preflight] what is not so bad can be made a warning with --ignore NAME,...\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// rest is the result without its name.
func (r Result) rest() string { return strings.TrimPrefix(r.String(), r.Name+": ") }
