package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/check/host"
	"unbounded/internal/config"
	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/paths"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name string
		args string
		env  string
		want command
		err  string
	}{
		{name: "nothing", want: command{output: "text"}},
		{name: "environment", env: "/tmp/c.json", want: command{config: "/tmp/c.json", output: "text"}},
		{name: "flag wins", env: "/tmp/c.json", args: "--config /x --output json --fail-on-warnings", want: command{config: "/x", output: "json", failOnWarnings: true}},
		{name: "names", args: "--ignore a,b --ignore=c,", want: command{output: "text", ignore: []string{"a", "b", "c"}}},
		{name: "the public agent's name", args: "--ignore-preflight-errors=all", want: command{output: "text", ignore: []string{"all"}}},
		{name: "unknown flag", args: "--now", err: "-now"},
		{name: "argument", args: "kube1", err: `unknown argument "kube1"`},
		{name: "output", args: "--output yaml", err: `"yaml", want text or json`},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parse(strings.Fields(test.args), test.env)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("parse: %v, want %q", err, test.err)
				}
				return
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(command{})); err != nil || diff != "" {
				t.Errorf("parse: %v\n%s", err, diff)
			}
		})
	}
}

func TestRead(t *testing.T) {
	root := t.TempDir()
	put := func(path, content string) string {
		if err := durable.Replace(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	expect := func(c command, want string, status exit.Status) {
		t.Helper()
		if data, err := c.read(root); string(data) != want || exit.Of(err) != status {
			t.Errorf("read of %+v = %q, %v, want %q, status %d", c, data, err, want, status)
		}
	}
	named, given := put(filepath.Join(root, "named"), "named"), filepath.Dir(put(filepath.Join(root, "own", paths.Credential), "given"))
	expect(command{}, "", exit.Refused)
	put(filepath.Join(paths.At(root, paths.SystemCredentials), paths.Credential), "booted with")
	expect(command{}, "booted with", exit.OK)
	expect(command{credentials: given}, "given", exit.OK)
	put(paths.At(root, paths.Config), "file")
	expect(command{credentials: given}, "file", exit.OK)
	expect(command{config: named, credentials: given}, "named", exit.OK)
}

func TestRunCheckUsage(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if got := runCheck([]string{"--now"}, "", "", &stdout, &stderr); got != exit.Usage || !strings.Contains(stderr.String(), "usage:") || stdout.Len() > 0 {
		t.Errorf("runCheck = %d, %q, %q", got, stdout.String(), stderr.String())
	}
	stdout.Reset()
	stderr.Reset()
	if got := runCheck([]string{"--help"}, "", "", &stdout, &stderr); got != exit.OK || !strings.Contains(stdout.String(), "usage:") || stderr.Len() > 0 {
		t.Errorf("runCheck --help = %d, %q, %q", got, stdout.String(), stderr.String())
	}
	if got := runCheck([]string{"--config", filepath.Join(t.TempDir(), "absent")}, "", "", &stdout, &stderr); got != exit.Failed || !strings.Contains(stderr.String(), "absent") {
		t.Errorf("runCheck without a configuration = %d, %q", got, stderr.String())
	}
}

// TestReference holds the table of checks in docs/reference.md against the checks that there are.
func TestReference(t *testing.T) {
	reference, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(reference), "\n## Preflight\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []string
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
				documented = append(documented, name[1])
			}
		}
	}
	// Those whose answer depends on who asks, and those that another check finds out on its way.
	have := []string{"agent-config", "existing-deployment", "clock-skew", "disk-space", "cri-artifacts", "cni-artifacts"}
	c := &config.Config{APIServer: "https://api.test:6443"}
	for _, check := range checks(&host.Host{Root: "/", Slot: "kube1", Config: c}, c) {
		have = append(have, check.Name)
	}
	slices.Sort(have)
	slices.Sort(documented)
	if diff := cmp.Diff(have, documented); diff != "" {
		t.Errorf("checks (-there +documented):\n%s", diff)
	}
}
