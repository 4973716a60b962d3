package check

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/exit"
)

func is(result Result) func(context.Context) []Result {
	return func(context.Context) []Result { return []Result{result} }
}

func TestRunKeepsOrderAndNames(t *testing.T) {
	results := Run(t.Context(), []Check{
		{"slow", func(ctx context.Context) []Result {
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
			return []Result{Pass("a", "fine"), Pass("b", "found on the way").As("other")}
		}},
		{"silent", func(context.Context) []Result { return nil }},
		{"fast", is(Warn("c", "%d is many", 3))},
	}, Plan{Limit: time.Second})
	var got []string
	for _, result := range results {
		got = append(got, result.Name+"="+string(result.Severity))
	}
	if diff := cmp.Diff([]string{"slow=ok", "other=ok", "fast=warning"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestRunLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		results := Run(t.Context(), []Check{
			{"hangs", func(context.Context) []Result { <-hang; return nil }},
			{"polite", func(ctx context.Context) []Result { <-ctx.Done(); return []Result{Fail(Waits, "", "waited")} }},
		}, Plan{Limit: time.Second})
		close(hang)
		if len(results) != 2 || results[0].String() != "hangs: no answer within 1s" || results[1].String() != "polite: waited" {
			t.Errorf("Run = %v", results)
		}
	})
}

func TestRunPatience(t *testing.T) {
	for _, test := range []struct {
		name     string
		cured    int32 // the look at which the waiting one is well
		other    Result
		ignore   []string
		looks    int32
		pauses   int
		severity Severity
	}{
		{"cured at the third look", 3, Pass("", ""), nil, 3, 2, OK},
		{"never cured", 1000, Pass("", ""), nil, 6, 5, Error}, // at 0, 1, 3, 7, 15 and 31 s
		{"another error decides", 3, Fail(May, "", "disk"), nil, 1, 0, Error},
		{"the other error is ignored", 3, Fail(Never, "", "disk"), []string{"other"}, 3, 2, OK},
		{"ignored itself", 3, Pass("", ""), []string{"all"}, 1, 0, Error},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var looks, others atomic.Int32
				var pauses int
				results := Run(t.Context(), []Check{
					{"waits", func(context.Context) []Result {
						if looks.Add(1) >= test.cured {
							return []Result{Pass("", "there")}
						}
						return []Result{Fail(Waits, "", "not there")}
					}},
					{"other", func(context.Context) []Result { others.Add(1); return []Result{test.other} }},
				}, Plan{
					Limit: time.Second, Patience: time.Minute - time.Second, Ignore: test.ignore,
					Waiting: func(pending []Result) {
						pauses++
						if len(pending) != 1 || pending[0].Name != "waits" {
							t.Errorf("Waiting(%v)", pending)
						}
					},
				})
				if looks.Load() != test.looks || others.Load() != 1 || pauses != test.pauses || results[0].Severity != test.severity {
					t.Errorf("%d looks, %d at the other, %d pauses, %v; want %d, 1, %d, %s",
						looks.Load(), others.Load(), pauses, results, test.looks, test.pauses, test.severity)
				}
			})
		})
	}
}

func TestRunCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		results := Run(ctx, []Check{{"waits", is(Fail(Waits, "", "not there"))}},
			Plan{Limit: time.Second, Patience: time.Hour, Waiting: func([]Result) { cancel() }})
		if len(results) != 1 {
			t.Errorf("Run = %v", results)
		}
	})
}

func sample() []Result {
	return []Result{
		Pass("uid", "is 0").As("is-privileged-user"),
		Warn("/proc/swaps", "swap is on: /dev/zram0").As("swap-active"),
		Fail(May, "/var/lib", "has 1.0 GiB free, 8.0 GiB are needed").Fix("make room").As("disk-space"),
		Fail(Never, "config", "OCIImage is missing").As("agent-config"),
	}
}

func TestReport(t *testing.T) {
	for _, test := range []struct {
		name           string
		results        []Result
		ignore         []string
		failOnWarnings bool
		status         string
		summary        Summary
		exit           exit.Status
	}{
		{"nothing", nil, nil, true, "ok", Summary{}, exit.OK},
		{"errors", sample(), nil, false, "failed", Summary{1, 1, 2}, exit.Refused},
		{"one ignored", sample(), []string{"agent-config"}, false, "failed", Summary{1, 2, 1}, exit.Failed},
		{"all ignored", sample(), []string{"all"}, false, "ok", Summary{1, 3, 0}, exit.OK},
		{"all ignored, warnings count", sample(), []string{"all"}, true, "failed", Summary{1, 3, 0}, exit.OK},
		{"a warning", sample()[:2], nil, false, "ok", Summary{1, 1, 0}, exit.OK},
	} {
		t.Run(test.name, func(t *testing.T) {
			report := NewReport(test.results, test.ignore, test.failOnWarnings)
			if report.Status != test.status || report.Summary != test.summary {
				t.Errorf("report is %s, %+v; want %s, %+v", report.Status, report.Summary, test.status, test.summary)
			}
			if got := exit.Of(report.Err()); got != test.exit {
				t.Errorf("status = %d, want %d", got, test.exit)
			}
		})
	}
}

func TestReportErrIsOneLine(t *testing.T) {
	got := NewReport(sample(), nil, false).Err().Error()
	want := "disk-space: has 1.0 GiB free, 8.0 GiB are needed (make room); agent-config: OCIImage is missing"
	if got != want {
		t.Errorf("Err = %q, want %q", got, want)
	}
}

func TestReportText(t *testing.T) {
	var text bytes.Buffer
	if err := NewReport(sample(), []string{"agent-config"}, false).Text(&text); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"[preflight] 4 checks: 1 ok, 2 warnings, 1 errors",
		"\t[WARNING swap-active]: swap is on: /dev/zram0",
		"\t[IGNORED agent-config]: OCIImage is missing",
		"[preflight] this host cannot become a node yet:",
		"\t[ERROR disk-space]: has 1.0 GiB free, 8.0 GiB are needed (make room)",
		"[preflight] what is not so bad can be made a warning with --ignore NAME,...",
		"",
	}, "\n")
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Error(diff)
	}
}

func TestReportJSON(t *testing.T) {
	var text bytes.Buffer
	if err := NewReport(sample()[1:3], nil, false).JSON(&text); err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(text.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"status": "failed",
		"checks": []any{
			map[string]any{"name": "swap-active", "target": "/proc/swaps", "severity": "warning", "message": "swap is on: /dev/zram0", "ignored": false},
			map[string]any{
				"name": "disk-space", "target": "/var/lib", "severity": "error",
				"message": "has 1.0 GiB free, 8.0 GiB are needed", "remedy": "make room", "ignored": false,
			},
		},
		"summary": map[string]any{"ok": 0.0, "warnings": 1.0, "errors": 1.0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
