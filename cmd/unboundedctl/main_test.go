package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"unbounded/internal/durable"
	"unbounded/internal/failure"
	"unbounded/internal/golden"
	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/internal/systemd"
)

// TestScripts runs the scripts in testdata: lines that lay out a host, then `$ unboundedctl ...` and all that is said,
// and how the host is left. `go test ./cmd/unboundedctl -update` writes what follows each command anew.
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("testdata/*.script")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, name := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".script"), func(t *testing.T) {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var have strings.Builder
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t)
				for line := range strings.Lines(string(data)) {
					switch line = strings.TrimSuffix(line, "\n"); {
					case strings.HasPrefix(line, "$ unboundedctl"):
						have.WriteString(line + "\n" + h.run(strings.Fields(line)[2:]))
					case strings.HasPrefix(line, "- "):
						have.WriteString(line + "\n")
						h.lay(strings.TrimPrefix(line, "- "))
					case strings.HasPrefix(line, "#"):
						have.WriteString(line + "\n")
					}
				}
			})
			golden.Check(t, name, have.String())
		})
	}
}

// fakeHost is a host and the units on it: those of a reset end as the script says.
type fakeHost struct {
	t         *testing.T
	root      string
	prefix    string // of the program
	answer    string
	user      int
	interrupt bool
	stages    map[string]systemd.Properties // how they will end
	doing     map[string]string
	units     map[string]systemd.Properties // as they are
	active    map[string]string
	said      bytes.Buffer
	startErr  error
	runs      int
}

func newHost(t *testing.T) *fakeHost {
	t.Helper()
	return &fakeHost{
		t: t, root: t.TempDir(), prefix: paths.DefaultRoot, stages: map[string]systemd.Properties{}, doing: map[string]string{},
		units: map[string]systemd.Properties{}, active: map[string]string{},
	}
}

func (h *fakeHost) write(path, content string) {
	if err := durable.Replace(paths.At(h.root, path), []byte(content), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// invocation is that of unit in the run that comes, or is.
func (h *fakeHost) invocation(unit string) string { return fmt.Sprint(h.runs, unit) }

// lay does a line that lays out the host.
func (h *fakeHost) lay(line string) {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "terminal": // and what is typed on it
		h.answer = rest + "\n"
	case "user":
		h.user, _ = strconv.Atoi(rest)
	case "interrupt":
		h.interrupt = true
	case "record":
		r := record.New(record.Identity{MachineName: "m1", KubernetesVersion: "1.37.2", OCIImage: "r.test/n:1", APIServer: "https://a.test"})
		r.Phase = record.Phase(rest)
		if err := record.Open(h.root).Create(h.t.Context(), r); err != nil {
			h.t.Fatal(err)
		}
	case "file":
		path, content, _ := strings.Cut(rest, " ")
		h.write(path, content)
	case "active":
		h.active[rest] = "active"
	case "missing":
		h.startErr = fmt.Errorf("start %s: %w", paths.ResetTarget, systemd.ErrNoUnit)
	case "installed":
		h.install(rest)
	case "status": // of a stage, while it runs
		unit, text, _ := strings.Cut(rest, " ")
		h.doing["unbounded-reset-"+unit+".service"] = text
	case "fails": // STAGE exit|signal NUMBER CAUSE
		fields := strings.SplitN(rest, " ", 4)
		number, _ := strconv.Atoi(fields[2])
		p := systemd.Properties{ActiveState: "failed", Result: "exit-code", ExecMainCode: 1, ExecMainStatus: int32(number)}
		if fields[1] == "signal" {
			p.Result, p.ExecMainCode = "signal", 2
		}
		unit := "unbounded-reset-" + fields[0] + ".service"
		h.stages[unit] = p
		if len(fields) == 4 {
			note := failure.Failure{Unit: unit, Cause: fields[3], InvocationID: h.invocation(unit)}
			if err := failure.Write(h.root, note); err != nil {
				h.t.Fatal(err)
			}
		}
	case "programs": // FOLDER ARCH
		folder, arch, _ := strings.Cut(rest, " ")
		for _, name := range programNames(h.t) {
			h.write(folder+"/"+name, program64(arch))
		}
	case "manifest": // of a release, FILE
		h.write(rest, manifestOf(h.t))
	default:
		h.t.Fatalf("script: %s", line)
	}
}

// install lays out what make install places below prefix.
func (h *fakeHost) install(prefix string) {
	h.prefix = prefix
	listed := []string{
		prefix + "/slots/blue/unboundedctl", prefix + "/slots/blue/unbounded-x", prefix + "/doc/operations.md", prefix + "/current",
		paths.SystemdDir + "/unbounded-x.service", paths.SystemdDir + "/unbounded-x.target", "/usr/local/lib/systemd/catalog/unbounded.catalog",
	}
	for _, path := range listed {
		h.write(path, "x")
	}
	h.write(paths.SystemdDir+"/unbounded-x.service", "[Service]\nExecStart="+prefix+"/current/unbounded-x converge\n")
	h.write(prefix+"/manifest", strings.Join(listed, "\n")+"\n")
}

// size is that of a document, which changes with every unit file.
var size = regexp.MustCompile(`(:|has) [0-9]+ bytes`)

// run runs the command and returns the transcript: what it said, its status, and what became of the host.
func (h *fakeHost) run(args []string) string {
	before := h.files()
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	if h.interrupt {
		time.AfterFunc(time.Second, cancel)
	}
	h.said.Reset()
	p := &program{
		in: strings.NewReader(h.answer), terminal: h.answer != "", out: &h.said, err: &h.said,
		root: h.root, user: h.user, hostname: func() (string, error) { return "node-1", nil },
		self:    func() (string, error) { return h.prefix + "/slots/blue/unboundedctl", nil },
		connect: func(context.Context) (manager, error) { return h, nil },
		logged: func(_ context.Context, unit string, _ time.Time) ([]string, error) {
			return []string{"lines of", unit}, nil
		},
	}
	if h.answer == "" {
		p.in = strings.NewReader("")
	}
	args = strings.Split(strings.ReplaceAll(strings.Join(args, "\n"), "ROOT", h.root), "\n")
	status := p.run(ctx, args)
	var transcript strings.Builder
	transcript.WriteString(size.ReplaceAllString(strings.ReplaceAll(h.said.String(), h.root, "ROOT"), "$1 SIZE bytes"))
	fmt.Fprintf(&transcript, "[exit status %d]\n", status)
	h.runs++
	after := h.files()
	for _, path := range before {
		if !slices.Contains(after, path) {
			fmt.Fprintf(&transcript, "[removed %s]\n", path)
		}
	}
	return transcript.String()
}

// files are the files and folders of the host, but for what is in /run.
func (h *fakeHost) files() (all []string) {
	err := filepath.WalkDir(h.root, func(path string, entry fs.DirEntry, err error) error {
		path = strings.TrimPrefix(path, h.root)
		if path == "/run" {
			return fs.SkipDir
		}
		if entry != nil && entry.IsDir() {
			path += "/"
		}
		all = append(all, path)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// Start runs the stages in their order, two seconds each.
func (h *fakeHost) Start(ctx context.Context, _ string) (systemd.Properties, error) {
	if h.startErr != nil {
		return systemd.Properties{}, h.startErr
	}
	for _, unit := range paths.ResetUnits() {
		began := time.Now()
		now := systemd.Properties{
			ActiveState: "activating", Result: "success", InvocationID: h.invocation(unit), BegunAt: began, StatusText: h.doing[unit],
		}
		h.units[unit] = now
		select {
		case <-ctx.Done():
			return systemd.Properties{}, ctx.Err()
		case <-time.After(2*time.Second - time.Millisecond):
		}
		now.ActiveState, now.EndedAt = "inactive", time.Now()
		if end, fails := h.stages[unit]; fails {
			end.InvocationID, end.BegunAt, end.EndedAt = now.InvocationID, now.BegunAt, now.EndedAt
			h.units[unit] = end
			return systemd.Properties{}, errors.New("job result dependency")
		}
		h.units[unit] = now
	}
	return systemd.Properties{}, nil
}

func (h *fakeHost) Properties(_ context.Context, unit string) (systemd.Properties, error) {
	if p, ok := h.units[unit]; ok {
		return p, nil
	}
	return systemd.Properties{ActiveState: "inactive"}, nil
}

func (h *fakeHost) Watch(units ...string) watch { return fakeWatch{h, units} }

func (h *fakeHost) ListUnits(context.Context, ...string) (map[string]string, error) {
	return h.active, nil
}

// Until lets the unit end.
func (h *fakeHost) Until(_ context.Context, unit string, done func(systemd.Properties) bool) (systemd.Properties, error) {
	if _, runs := h.active[unit]; runs {
		h.active[unit] = "inactive"
	}
	p := systemd.Properties{ActiveState: "inactive"}
	if !done(p) {
		return p, errors.New("it would be waited for in vain")
	}
	return p, nil
}

func (h *fakeHost) Disable(context.Context, string) (bool, error) { return false, nil }
func (h *fakeHost) ResetFailed(context.Context, string) error     { return nil }
func (h *fakeHost) Close()                                        {}

func (h *fakeHost) Reload(context.Context) error {
	h.said.WriteString("[daemon-reload]\n")
	return nil
}

type fakeWatch struct {
	host  *fakeHost
	units []string
}

func (w fakeWatch) Look(ctx context.Context) (all []systemd.Properties, err error) {
	for _, unit := range w.units {
		p, _ := w.host.Properties(ctx, unit)
		all = append(all, p)
	}
	return all, ctx.Err()
}

func (fakeWatch) Close(context.Context) {}
