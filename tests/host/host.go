// Package host boots real hosts for tests: a Debian tree under systemd-nspawn with
// its own PID 1, D-Bus, journal, network, packet filter and machines, in a second.
//
//	func TestMain(m *testing.M) { os.Exit(host.Main(m)) }
//
//	func TestStart(t *testing.T) {
//		h := host.Boot(t, host.Options{Release: "trixie"})
//		h.MustRun(t, "systemctl start unbounded-bootstrap.target")
//	}
//
// Each host is alone: its files are an overlay on the tree that scripts/testground
// built, its network is a bridge on which services of the test stand at OutsideIP
// (see Listen and Start). The end of the test, or of the test process, however it
// comes, takes everything away.
//
// What hosts share is the kernel: the parameters that no namespace separates
// (vm.overcommit_memory, kernel.panic, …) are those of the machine, and they are
// put back when the last host is gone.
package host

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// T is what the ground needs of a test; the demo has one too.
type T interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Failed() bool
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// Options choose a host. The zero value is a Debian 12 with the product installed,
// a machine-id of its own and the name "node-1".
type Options struct {
	Release  string          // "bookworm" (default) or "trixie"
	Hostname string          // default "node-1"
	Overlay  map[string]File // put on the tree before the first boot, by path
	Bare     bool            // without the product
	Off      bool            // do not boot yet: see Host.On
	NoWait   bool            // return as soon as PID 1 runs: see Host.WaitReady
	Args     []string        // more arguments of systemd-nspawn
	Disk     int64           // bytes that the host can write, default 20 GiB
}

// Host is a host under test.
type Host struct {
	Dir     string // the host's folder on this machine
	Root    string // its tree seen from here; without what it mounts itself
	Changes string // what is in that tree and not in the cached one

	events   chan event // boot events, in order
	commands io.WriteCloser
	keeper   int
	cgroup   string

	mu     sync.Mutex
	leader int
}

// bootLimit bounds a boot or a shutdown. A boot is over when no job is left: it may have a bootstrap in it.
const bootLimit = 5 * time.Minute

const defaultDisk = 20 << 30

// plainFolders are kept off the overlay, because containerd's own overlays lie there.
var plainFolders = []string{"/var/lib/machines", "/var/lib/unbounded"}

// Boot makes a host and boots it. It is gone when the test ends.
func Boot(t T, options Options) *Host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatalf("booting a host needs root: run the tests as root")
	}
	h, err := create(t, options)
	if err != nil {
		t.Fatalf("make a host: %v", err)
	}
	for path, file := range identity(options) {
		h.place(t, path, file)
	}
	for path, file := range options.Overlay {
		h.place(t, path, file)
	}
	switch {
	case options.Off:
	case options.NoWait:
		h.startBoot(t)
	default:
		h.On(t)
	}
	return h
}

// create makes the host's folder and its surroundings.
func create(t T, options Options) (*Host, error) {
	lower, err := layers(options)
	if err != nil {
		return nil, err
	}
	dir, err := newFolder()
	if err != nil {
		return nil, err
	}
	h := &Host{Dir: dir, events: make(chan event, 64)}
	s := spec{Dir: dir, Size: cmp.Or(options.Disk, defaultDisk), Lower: lower, Plain: plainFolders, Args: options.Args}
	if err := errors.Join(os.Mkdir(s.path("root"), 0o755), os.Mkdir(s.path("disk"), 0o755)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := h.supervise(t, s); err != nil {
		return nil, err
	}
	return h, nil
}

// layers are the read-only trees of a host, the uppermost first.
func layers(options Options) ([]string, error) {
	tree, err := Artefact("host-" + cmp.Or(options.Release, "bookworm"))
	if err != nil {
		return nil, err
	}
	if options.Bare {
		return []string{tree}, nil
	}
	product, err := Product()
	if err != nil {
		return nil, err
	}
	return []string{product, tree}, nil
}

// supervise starts the processes of the host and waits for its surroundings.
func (h *Host) supervise(t T, s spec) error {
	supervisor, err := self(supervisorName, s)
	if err != nil {
		return err
	}
	log, err := os.Create(s.path("ground.log"))
	if err != nil {
		return err
	}
	supervisor.Stderr = log
	// A Ctrl-C is for the test; the supervisor has to outlive it.
	supervisor.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	h.commands, err = supervisor.StdinPipe()
	var out io.ReadCloser
	if err == nil {
		out, err = supervisor.StdoutPipe()
	}
	if err == nil {
		err = supervisor.Start()
	}
	if err != nil {
		return errors.Join(err, log.Close())
	}
	read := make(chan struct{})
	go func() { h.read(out); close(read) }()
	t.Cleanup(func() { h.end(t, supervisor, read, log) })
	if err := h.expect(t.Context(), "keeper", "up"); err != nil {
		text, _ := os.ReadFile(s.path("ground.log"))
		return fmt.Errorf("%w\n%s", err, text)
	}
	view := filepath.Join("/proc", fmt.Sprint(h.keeper), "root")
	h.Root = filepath.Join(view, s.path("root"))
	h.Changes = filepath.Join(view, s.path("disk/upper"))
	return nil
}

// end takes the host away and, of a failed test, shows what the host says. The supervisor removes its log with the
// folder; the open file still has it.
func (h *Host) end(t T, supervisor *exec.Cmd, read <-chan struct{}, log *os.File) {
	defer log.Close()
	if t.Failed() {
		h.explain(t)
	}
	_ = h.commands.Close()
	<-read
	if err := supervisor.Wait(); err != nil {
		text, _ := io.ReadAll(io.NewSectionReader(log, 0, math.MaxInt64))
		t.Logf("the supervisor of %s: %v\n%s", h.Dir, err, text)
	}
}

// read takes the events of the keeper. It never waits for the test.
func (h *Host) read(out io.Reader) {
	defer close(h.events)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		select {
		case h.events <- e:
		default: // a host that reboots for ever, in a test that looks elsewhere
		}
	}
}

// expect waits for events, in this order; others before them are passed over.
func (h *Host) expect(ctx context.Context, kinds ...string) error {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	for _, kind := range kinds {
		if err := h.expectOne(ctx, kind); err != nil {
			return fmt.Errorf("wait for %q: %w", kind, err)
		}
	}
	return nil
}

func (h *Host) expectOne(ctx context.Context, kind string) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, open := <-h.events:
			if !open {
				return errors.New("the keeper has ended")
			}
			if err := h.note(e); err != nil {
				return err
			}
			if e.Kind == kind {
				return nil
			}
			if e.Kind == "down" {
				return fmt.Errorf("the host went down: %s", e.Detail)
			}
		}
	}
}

// note keeps what an event tells.
func (h *Host) note(e event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch e.Kind {
	case "keeper":
		h.keeper, h.cgroup = e.PID, e.Detail
	case "leader":
		leader, err := leaderIn(h.cgroup, h.keeper)
		if err != nil {
			return err
		}
		h.leader = leader
	case "down":
		h.leader = 0
	case "error":
		return errors.New(e.Detail)
	}
	return nil
}

// Leader is the host's PID 1 as seen from here, 0 while the host is off.
func (h *Host) Leader() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leader
}

// On boots a host that is off and waits until it is up.
func (h *Host) On(t T) {
	t.Helper()
	h.startBoot(t)
	h.WaitReady(t)
}

// Start boots a host that is off and returns as soon as PID 1 runs: see WaitReady.
func (h *Host) Start(t T) {
	t.Helper()
	h.startBoot(t)
}

func (h *Host) startBoot(t T) {
	t.Helper()
	_, err := io.WriteString(h.commands, "boot\n")
	if err == nil {
		err = h.expect(t.Context(), "leader")
	}
	if err != nil {
		t.Fatalf("boot: %v\n%s", err, h.console())
	}
}

// WaitReady waits until the host says that it is up: its default target is reached
// and no boot job is left.
func (h *Host) WaitReady(t T) {
	t.Helper()
	if err := h.expect(t.Context(), "ready"); err != nil {
		t.Fatalf("boot: %v\n%s", err, h.console())
	}
}

// Reboot reboots the host in order and waits until it is up again.
func (h *Host) Reboot(t T) {
	t.Helper()
	h.Run(t, "systemctl --no-block reboot")
	h.WaitReboot(t)
}

// WaitReboot waits for the end of a reboot that the host does by itself.
func (h *Host) WaitReboot(t T) {
	t.Helper()
	if err := h.expect(t.Context(), "leader", "ready"); err != nil {
		t.Fatalf("reboot: %v\n%s", err, h.console())
	}
}

// SeesReboots lets the units of the product tell one boot of the host from another. Without it those with
// ProtectControlGroups= see, in the fresh /proc that this directive gives them, the boot id of the machine, which does
// not reboot: the host is a container. A test that reboots between a bootstrap and a reset needs it.
func (h *Host) SeesReboots(t T) {
	t.Helper()
	h.WriteFile(t, "/etc/systemd/system/unbounded-.service.d/boot.conf", File{Content: "[Service]\nProtectControlGroups=no\n"})
	h.MustRun(t, "systemctl daemon-reload")
}

// PowerOff shuts the host down in order. On boots it again.
func (h *Host) PowerOff(t T) {
	t.Helper()
	h.Run(t, "systemctl --no-block poweroff")
	h.waitDown(t)
}

// PowerCut kills the host with all that runs in it, at once. What it has written
// survives, synced or not: only a virtual machine loses its page cache.
func (h *Host) PowerCut(t T) {
	t.Helper()
	if err := killCgroup(filepath.Join(h.cgroup, "payload")); err != nil {
		t.Fatalf("cut the power: %v", err)
	}
	h.waitDown(t)
}

func (h *Host) waitDown(t T) {
	t.Helper()
	if err := h.expect(t.Context(), "down"); err != nil {
		t.Fatalf("power off: %v\n%s", err, h.console())
	}
}

// console is the end of what the host wrote to its console.
func (h *Host) console() string {
	const enough = 4096
	text, err := os.ReadFile(filepath.Join(h.Dir, "console.log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-enough):])
}

// explain shows the journal of the product's units.
func (h *Host) explain(t T) {
	if h.Leader() == 0 {
		t.Logf("console:\n%s", h.console())
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), bootLimit)
	defer cancel()
	result := h.run(ctx, "journalctl --no-pager -o short-monotonic -n 80 -u 'unbounded*' -u 'systemd-nspawn@*'; systemctl --no-pager --failed")
	t.Logf("journal of the host:\n%s%s", result.Out, result.Err)
}
