package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"unbounded/internal/durable"
	"unbounded/internal/journal"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
)

func TestFiles(t *testing.T) {
	var out bytes.Buffer
	env := &stage.Env{Root: t.TempDir(), Log: journal.To(&out)}
	const program = "…github.com/Azure/unbounded/cmd/agent…"
	for path, content := range map[string]string{
		"/opt/unbounded/agent/bin/unbounded-agent-blue":     program,
		"/usr/local/bin/unbounded-agent-green":              program,
		"/usr/local/bin/unbounded-agent":                    "#!/bin/sh\n",
		"/usr/local/bin/kubectl":                            "x",
		"/opt/unbounded/slots/blue/unbounded-legacy":        "x",
		"/etc/unbounded/kube/nftables-clear.nft":            "flush ruleset\n",
		"/var/lib/unbounded/container-images/a/image-0.tar": "x",
		"/var/lib/unbounded/of-the-operator":                "x",
		paths.Config:                                        "{}",
	} {
		if err := durable.Replace(paths.At(env.Root, path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := files(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		"/opt/unbounded/agent": false, "/etc/unbounded/kube": false, "/var/lib/unbounded/container-images": false,
		"/usr/local/bin/unbounded-agent-green": false,
		"/usr/local/bin/unbounded-agent":       true, "/usr/local/bin/kubectl": true, "/opt/unbounded/slots/blue/unbounded-legacy": true,
		"/var/lib/unbounded/of-the-operator": true, paths.Config: true,
	} {
		if _, err := os.Lstat(paths.At(env.Root, path)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", path, err, want)
		}
	}
	if !strings.Contains(out.String(), "/usr/local/bin/unbounded-agent stays") {
		t.Errorf("said %q, want what stays named", &out)
	}
	out.Reset()
	if err := files(t.Context(), env); err != nil || strings.Contains(out.String(), "removed") {
		t.Errorf("the second run: %v, said %q", err, &out)
	}
}
