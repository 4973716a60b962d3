// Package budget holds the size of every program and what it may link.
package budget

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const mb = 1_000_000

// budgets are the largest size of each program in bytes (design: who may import whom).
var budgets = map[string]int64{
	"admission":      4 * mb,
	"boot":           4 * mb,
	"conflicts":      4 * mb,
	"daemon-install": 4 * mb,
	"failed":         4 * mb,
	"join":           15 * mb, // client-go
	"kernel":         4 * mb,
	"legacy":         4 * mb,
	"machine":        4 * mb,
	"network":        41 * mb / 10, // the packet filter, and links, routes and rules
	"nftables":       41 * mb / 10, // dumps, tells apart and replays rulesets
	"node":           4 * mb,
	"preflight":      9 * mb, // HTTPS
	"prerequisites":  4 * mb,
	"reset":          4 * mb,
	"rootfs":         13 * mb, // HTTPS and the image
	"unboundedctl":   6 * mb,  // reads and writes the documents of image-based hosts
	"verify":         4 * mb,
}

// owners are the only internal packages that may import a foreign module, by prefix of its path.
var owners = []struct {
	module string
	owners []string
}{
	{"k8s.io/", []string{"internal/kube"}},
	{"github.com/godbus/", []string{"internal/systemd", "internal/machined"}},
	{"github.com/coreos/go-systemd/v22/dbus", []string{"internal/systemd", "internal/machined"}},
	{"github.com/coreos/go-systemd/v22/journal", []string{"internal/journal"}},
	{"github.com/coreos/go-systemd/v22/daemon", []string{"internal/journal"}},
	{"github.com/google/nftables", []string{"internal/nft"}},
	{"github.com/mdlayher/netlink", []string{"internal/nft", "internal/link"}},
	{"github.com/opencontainers/umoci", []string{"internal/unpack"}},
	{"oras.land/", []string{"internal/oci"}},
	{"github.com/coreos/ignition/", nil}, // an HTTP client comes along: for tests
	{"github.com/coreos/butane/", nil},
	{"go.yaml.in/yaml/", []string{"ignition"}},
	{"github.com/gofrs/flock", []string{"internal/lock", "internal/record", "internal/content"}},
}

func goTool(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

func TestSizes(t *testing.T) {
	helpers, err := filepath.Glob("../../helpers/*/main.go")
	if err != nil || len(helpers) == 0 {
		t.Fatalf("no helpers found: %v", err)
	}
	commands, err := filepath.Glob("../../cmd/*/main.go")
	if err != nil || len(commands) == 0 {
		t.Fatalf("no commands found: %v", err)
	}
	out := t.TempDir()
	for _, main := range append(helpers, commands...) {
		dir := filepath.Dir(main)
		name := filepath.Base(dir)
		t.Run(name, func(t *testing.T) {
			budget, ok := budgets[name]
			if !ok {
				t.Fatal("has no budget")
			}
			program := filepath.Join(out, name)
			goTool(t, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", program, "./"+strings.TrimPrefix(dir, "../../"))
			info, err := os.Stat(program)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%.2f MB of %d MB", float64(info.Size())/mb, budget/mb)
			if info.Size() > budget {
				t.Errorf("%d bytes, budget %d", info.Size(), budget)
			}
		})
	}
}

func TestImports(t *testing.T) {
	const self = "unbounded/"
	for line := range strings.Lines(goTool(t, "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")) {
		fields := strings.Fields(line)
		importer := strings.TrimPrefix(fields[0], self)
		if importer == "internal/x" || strings.HasPrefix(importer, "tests/") {
			continue
		}
		for _, imported := range fields[1:] {
			for _, row := range owners {
				if strings.HasPrefix(imported, row.module) && !slices.Contains(row.owners, importer) {
					t.Errorf("%s imports %s: only %v may", importer, imported, row.owners)
				}
			}
			local, ok := strings.CutPrefix(imported, self)
			switch {
			case !ok:
			case strings.HasPrefix(local, "helpers/"):
				t.Errorf("%s imports the program %s", importer, local)
			case strings.HasPrefix(importer, "ignition") && !slices.Contains([]string{"units", "internal/config", "internal/paths"}, local):
				t.Errorf("%s imports %s: the generator is pure", importer, local)
			}
		}
	}
}
