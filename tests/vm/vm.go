// Package vm boots virtual machines on the test ground: hosts with a kernel, a disk and a page
// cache of their own, so that a power cut loses what was written and not synced.
//
//	v := vm.Boot(t, vm.Options{})
//	v.MustRun(t, "systemctl start unbounded-bootstrap.target")
//	v.Cut(t)
//	v.On(t)
//
// A machine is what a host of tests/host is, its files, addresses and services beside it included,
// but runs under QEMU, which emulates the processor: everything takes ten times as long.
//
// What a cut loses: the guest's page cache, whole. What the guest has sent to its disk but not
// flushed, as far as it is new there: QEMU keeps the tables of the disk's image in memory until the
// guest flushes. What was flushed stays, because the image is written through the page cache of the
// machine that runs the tests, and that one lives on.
package vm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

// Options choose a virtual machine.
type Options struct {
	ground.Options

	// The image has little in it, and what stands in for containerd and kubelet makes a Node at once: a
	// start that takes minutes with the real ones takes seconds.
	StandIn bool

	// The machine is one of an image, as tests/image makes them: without product, configuration and machine-id.
	// It stays off: see VM.Ignite.
	Image bool
}

// VM is a virtual machine with all that it needs to become a node.
type VM struct {
	Ground *ground.Ground // what stands beside the machine; its own host stays off

	changes map[string]any // to the ground's configuration

	kernel string
	disk   string // what the machine boots from now
	agent  net.Listener
	now    *boot // nil while the machine is off
}

// Limits for a machine whose processor is emulated, on a machine that does more.
const (
	bootLimit = 3 * time.Minute
	runLimit  = 10 * time.Minute
)

const (
	diskSize = "8G"
	memory   = "2048"
	link     = "vm0"

	// What a distribution does of its own accord, at midnight say, would be in the way.
	idle = "systemd.mask=timers.target systemd.mask=e2scrub_reap.service"

	commandLine = "console=ttyS0 quiet net.ifnames=0 panic=-1 " + idle
)

// agentUnit is the unit of the agent. It asks for nothing, so it is there early.
const agentUnit = `[Unit]
Description=Test ground: run what the test asks for
DefaultDependencies=no
After=systemd-tmpfiles-setup.service dbus.socket
[Service]
ExecStart=/usr/lib/ground/agent
# What the test runs is not the agent's.
KillMode=process
Restart=always
`

// Boot makes a machine and boots it, unless the options say that it stays off. It is gone when
// the test ends.
func Boot(t host.T, options Options) *VM {
	t.Helper()
	v, err := create(t, options)
	if err != nil {
		t.Fatalf("make a virtual machine: %v", err)
	}
	v.Fresh(t)
	if !options.Host.Off && !options.Image {
		v.On(t)
	}
	return v
}

// create makes the machine's surroundings and its disk. The disk is its own, product and configuration included: to
// make it takes less than to put them into one that was cached.
func create(t host.T, options Options) (*VM, error) {
	kernel, err := host.Artefact("vm-kernel")
	if err != nil {
		return nil, err
	}
	program, err := Guest()
	if err != nil {
		return nil, err
	}
	overlay := map[string]host.File{
		"/usr/lib/ground/agent":                                         {Content: string(program), Mode: 0o755},
		"/etc/systemd/system/ground-agent.service":                      {Content: agentUnit},
		"/etc/systemd/system/sysinit.target.wants/ground-agent.service": {Link: "../ground-agent.service"},
		"/etc/fstab": {Content: "/dev/vda / ext4 defaults 0 0\n"},
	}
	if options.Image {
		options.Host = imaged(options.Host)
	}
	maps.Copy(overlay, options.Host.Overlay)
	options.Host.Overlay, options.Host.Off = overlay, true
	v := &VM{Ground: ground.Boot(t, options.Options), kernel: kernel, changes: options.Config}
	if err := os.Mkdir(v.path(""), 0o755); err != nil {
		return nil, err
	}
	root := filepath.Join(v.Ground.Dir, "root")
	if options.StandIn {
		v.changes = v.standIn(t)
		maps.Copy(v.changes, options.Config)
		v.Ground.WriteConfig(t, v.changes)
	}
	if options.Image {
		v.Ground.WriteFile(t, filepath.Dir(filepath.Dir(paths.Config)), host.File{Absent: true})
	}
	v.agent, err = new(net.ListenConfig).Listen(t.Context(), "unix", v.path("agent"))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { v.end(t) })
	for _, command := range [][]string{
		{"ip", "tuntap", "add", "dev", link, "mode", "tap"},
		{"ip", "link", "set", link, "master", "br0", "up"},
		{"cp", "-a", filepath.Join(kernel, "modules/usr/lib/modules"), root + "/usr/lib"},
		{"mkfs.ext4", "-q", "-m", "0", "-d", root, v.path("factory"), diskSize},
		// The ground's own, empty: a folder that we make for ourselves.
		{"debugfs", "-w", "-R", "rmdir /var/lib/unbounded", v.path("factory")},
	} {
		if err := v.outside(t.Context(), command...); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (v *VM) path(name string) string { return filepath.Join(v.Ground.Dir, "vm", name) }

// outside runs a program beside the machine.
func (v *VM) outside(ctx context.Context, args ...string) error {
	out, err := v.Ground.Outside(ctx, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return err
}

// Fresh gives a machine that is off the disk that it had before its first boot.
func (v *VM) Fresh(t host.T) {
	t.Helper()
	v.base(t, v.path("factory"), "raw")
}

// base makes a new disk on an old one.
func (v *VM) base(t host.T, below, format string) {
	t.Helper()
	if v.now != nil {
		t.Fatalf("change the disk: the machine is on")
	}
	v.disk = v.path("disk")
	if err := v.outside(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2", "-b", below, "-F", format, v.disk); err != nil {
		t.Fatalf("%v", err)
	}
}

// On boots a machine that is off and waits until it is up.
func (v *VM) On(t host.T) {
	t.Helper()
	began := time.Now()
	v.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	if err := v.now.hello(ctx); err != nil {
		t.Fatalf("boot: %v\n%s", err, v.console())
	}
	v.MustRun(t, "systemctl is-system-running --wait || test $(systemctl is-system-running) = degraded")
	t.Logf("booted in %v", time.Since(began).Round(100*time.Millisecond))
}

// Freeze stops a running machine and keeps all of it, memory and disk, under a name. It is off then.
func (v *VM) Freeze(t host.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	if err := v.now.freeze(ctx, v.path("frozen-"+name)); err != nil {
		t.Fatalf("freeze: %v", err)
	}
	v.now.kill()
	v.now = nil
	if err := os.Rename(v.disk, v.path("kept-"+name)); err != nil {
		t.Fatalf("freeze: %v", err)
	}
}

// Thaw makes a machine that is off run on from where Freeze stopped it, with the clock of now.
func (v *VM) Thaw(t host.T, name string) {
	t.Helper()
	v.base(t, v.path("kept-"+name), "qcow2")
	v.start(t, "-incoming", "exec:cat "+v.path("frozen-"+name))
	v.MustRun(t, fmt.Sprintf("date -s @%d", time.Now().Unix()))
}

func (v *VM) start(t host.T, more ...string) {
	t.Helper()
	if v.now != nil {
		t.Fatalf("start QEMU: the machine is on")
	}
	b, err := v.power(t.Context(), more)
	if err != nil {
		t.Fatalf("start QEMU: %v", err)
	}
	v.now = b
}

// arguments are those of QEMU. KVM is never used: not every machine that offers it has it. The plainest
// processor is the one that is emulated fastest.
func (v *VM) arguments() []string {
	return []string{
		"qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-accel", "tcg,thread=multi", "-cpu", "qemu64", "-smp", "2", "-m", memory,
		"-kernel", filepath.Join(v.kernel, "vmlinuz"), "-initrd", filepath.Join(v.kernel, "initrd"),
		"-append", commandLine,
		"-chardev", "file,id=console,append=on,path=" + filepath.Join(v.Ground.Dir, "console.log"), "-serial", "chardev:console",
		"-drive", "if=virtio,format=qcow2,cache=writeback,discard=unmap,file=" + v.disk,
		"-netdev", "tap,id=net,script=no,downscript=no,ifname=" + link, "-device", "virtio-net-pci,netdev=net",
		"-chardev", "socket,id=agent,path=" + v.path("agent"), "-device", "virtio-serial-pci",
		"-device", "virtserialport,nr=1,chardev=agent,name=agent", "-device", "virtio-rng-pci",
		"-qmp", "stdio",
	}
}

// Cut takes the power away at once.
func (v *VM) Cut(t host.T) {
	t.Helper()
	if v.now == nil {
		t.Fatalf("cut the power: the machine is off")
	}
	v.now.kill()
	v.now = nil
}

// PowerOff shuts the machine down in order.
func (v *VM) PowerOff(t host.T) {
	t.Helper()
	v.Run(t, "systemctl --no-block poweroff")
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	select {
	case <-v.now.ended:
		v.now.kill()
		v.now = nil
	case <-ctx.Done():
		t.Fatalf("power off: %v\n%s", ctx.Err(), v.console())
	}
}

// Run runs a shell command line in the machine.
func (v *VM) Run(t host.T, script string) host.Result {
	t.Helper()
	result, err := v.run(t.Context(), script, "")
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, v.console())
	}
	return result
}

func (v *VM) run(ctx context.Context, script, input string) (host.Result, error) {
	if v.now == nil {
		return host.Result{}, errors.New("the machine is off")
	}
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	return v.now.run(ctx, host.Synced(script), input)
}

// Begin has a shell command line run in the machine, and gives its end, which does not come if the power goes first.
func (v *VM) Begin(t host.T, script string) <-chan host.Result {
	t.Helper()
	if v.now == nil {
		t.Fatalf("%s: the machine is off", script)
	}
	began := time.Now()
	answer, err := v.now.send(script, "")
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	ended := make(chan host.Result, 1)
	go func(b *boot) {
		select {
		case a := <-answer:
			ended <- host.Result{Out: a.Out, Err: a.Err, Code: a.Code, Took: time.Since(began)}
		case <-b.ended:
		}
	}(v.now)
	return ended
}

// MustRun is Run of a command that has to succeed; it gives its output.
func (v *VM) MustRun(t host.T, script string) string {
	t.Helper()
	result := v.Run(t, script)
	if result.Code != 0 {
		t.Fatalf("%s: exit %d\n%s%s", script, result.Code, result.Out, result.Err)
	}
	return result.Out
}

// console is the end of what the machine wrote to its console.
func (v *VM) console() string {
	const enough = 4096
	text, err := os.ReadFile(filepath.Join(v.Ground.Dir, "console.log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-enough):])
}

// end takes the machine away and, of a failed test, shows what it says.
func (v *VM) end(t host.T) {
	if t.Failed() && v.now != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		result, err := v.run(ctx, "journalctl --no-pager -o short-monotonic -n 80 -u 'unbounded*' -u 'systemd-nspawn@*'; systemctl --no-pager --failed", "")
		t.Logf("journal of the machine: %v\n%s%s", err, result.Out, result.Err)
	}
	if v.now != nil {
		v.now.kill()
		v.now = nil
	}
	_ = v.agent.Close()
}

// Guest is the program that runs in machines, as it is built from its sources.
func Guest() ([]byte, error) {
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "guest")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "unbounded/tests/vm/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build guest: %w\n%s", err, out)
	}
	return os.ReadFile(path)
}
