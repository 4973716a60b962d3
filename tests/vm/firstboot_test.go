//go:build vm

package vm_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/image"
	"unbounded/tests/vm"
)

// An image-based machine becomes a node at its first boot, by a document that Ignition carries out in the initramfs, with
// nobody touching it. After a reboot it is Ready again, and no unit of ours has run.
func TestFirstBoot(t *testing.T) {
	v := vm.Boot(t, vm.Options{Image: true, StandIn: !full()})
	image.Serve(t, v.Ground.Host)
	v.Ignite(t, image.Document(t, v.Config(t)))
	began := time.Now()
	complete(t, v)
	first := ready(t, v, "")
	t.Logf("Ready %v after Ignition", time.Since(began).Round(time.Second))
	// The marker is there before verify has run and the unit has ended.
	v.MustRun(t, "timeout 120 sh -c 'while test $(systemctl show -P ActiveState "+paths.BootUnit+") != inactive; do sleep 1; done'")
	for _, row := range []struct{ script, want string }{
		{"stat -c '%a %U' " + paths.Config, "600 root\n"},
		{"findmnt -no OPTIONS --target /usr | cut -d, -f1", "ro\n"},
		{"findmnt -n " + paths.MachineID, ""},
		{"systemctl show -P ActiveState -P Result " + paths.BootUnit, "success\ninactive\n"},
	} {
		if got := v.Run(t, row.script).Out; got != row.want {
			t.Errorf("%s = %q, want %q", row.script, got, row.want)
		}
	}
	if ran := v.MustRun(t, ran); !strings.Contains(ran, "unbounded-join") {
		t.Errorf("what ran in the first boot:\n%s", ran)
	}

	v.PowerOff(t)
	v.On(t)
	ready(t, v, first)
	if got := v.MustRun(t, "systemctl show -P ConditionResult -P ActiveState "+paths.BootUnit); got != "inactive\nno\n" {
		t.Errorf("%s after the reboot: %q, want it skipped", paths.BootUnit, got)
	}
	if ran := v.MustRun(t, ran); ran != "" {
		t.Errorf("what ran after the reboot:\n%s", ran)
	}
}

// ran lists what of ours has had a process in this boot: units that systemd has started, and whoever wrote to the journal.
// What the machine's own unit runs to refresh the machine's devices is part of that unit's start.
const ran = `journalctl -b -o cat _PID=1 MESSAGE_ID=7d4958e842da4a758f6c1cdc7b36dcc5 | grep 'unbounded-'
	journalctl -b -o json --output-fields=_EXE,_CMDLINE,MESSAGE | grep '"_EXE":"` + paths.DefaultRoot + `' |
		grep -v '"_CMDLINE":"[^"]* refresh kube1"' || true`

// How many cuts there are in a first boot that Ignition is through with: UNBOUNDED_FAULT=full makes all.
const sampleFirsts, fullFirsts = 1, 5

// firstTakes is about what a first boot takes after Ignition.
const firstTakes = 50 * time.Second

// The power goes in the middle of a first boot, after Ignition. Later boots have no Ignition, and the first of them ends
// what was begun, as the same installation.
func TestFirstBootPowerCuts(t *testing.T) {
	times := sampleFirsts
	if full() {
		times = fullFirsts
	}
	c := &cutter{VM: vm.Boot(t, vm.Options{Image: true, StandIn: true}), random: seeded(t)}
	server := image.Serve(t, c.Ground.Host)
	document := image.Document(t, c.Config(t))

	// The next boot has another machine-id, and is still this installation.
	t.Run("before machine-id is committed", func(t *testing.T) {
		c.Ignite(t, document, "systemd.mask=systemd-machine-id-commit.service")
		c.MustRun(t, "sync; timeout 240 sh -c 'until test -e "+paths.Admitted+"; do sleep 1; done'; findmnt "+paths.MachineID)
		before, transient := c.record(t), c.MustRun(t, "cat "+paths.MachineID)
		if before.InstallID == "" || before.MachineID != "" {
			t.Errorf("the record is of installation %q and machine-id %q, which is not on the disk", before.InstallID, before.MachineID)
		}
		c.Cut(t)
		if c.ends(t, before.InstallID) == strings.TrimSpace(transient) {
			t.Errorf("the machine-id has survived the cut: nothing is tested here")
		}
	})
	t.Run("at any moment", func(t *testing.T) {
		c.Fresh(t)
		c.Ignite(t, document)
		c.MustRun(t, "sync") // Ignition leaves that to the kernel; what is lost of its own work, no later boot can mend
		c.Freeze(t, "ignited")
		within := firstTakes
		for n := range times {
			c.Thaw(t, "ignited")
			after := time.Duration(c.random.Int64N(int64(within)))
			// The moment itself is what is random here.
			select {
			case <-time.After(after):
				t.Logf("cut %d of %d after %v", n+1, times, after.Round(time.Millisecond))
			case result := <-c.Begin(t, "until test -e "+paths.Complete+"; do sleep 1; done"):
				within = result.Took
				t.Logf("cut %d of %d right after the end", n+1, times)
			}
			c.Cut(t)
			c.ends(t, "")
		}
		report(t, fmt.Sprintf("%d power cuts in a first boot; all converged: %v", times, !t.Failed()))
	})
	// That is the distribution's affair: its mark is still there, so it begins again. Our document lets it.
	t.Run("in Ignition", func(t *testing.T) {
		if !full() {
			t.Skip("takes minutes: UNBOUNDED_FAULT=full runs it")
		}
		c.Fresh(t)
		server.Forget()
		c.BeginIgnition(t, document)
		const some = 10 // of the programs
		for deadline := time.Now().Add(readyLimit); len(server.Requests()) < some; <-time.After(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("Ignition has asked for %d programs", len(server.Requests()))
			}
		}
		c.Cut(t)
		c.Ignite(t, document)
		complete(t, c.VM)
	})
}

// ends boots the machine after a cut, and has it become a node by itself. The installation is the one whose record has
// survived, and the one that is given. It tells the machine-id, and the machine is off then.
func (c *cutter) ends(t *testing.T, id string) string {
	t.Helper()
	c.Ground.Cluster.Kubectl(t, "delete", "node", ground.NodeName, "--ignore-not-found")
	c.On(t)
	if id == "" {
		id = c.record(t).InstallID
	}
	complete(t, c.VM)
	ready(t, c.VM, "")
	got := c.record(t)
	if id != "" && got.InstallID != id {
		t.Errorf("the installation is %s, and was %s", got.InstallID, id)
	}
	machine := strings.TrimSpace(c.MustRun(t, "cat "+paths.MachineID))
	if got.MachineID != machine {
		t.Errorf("the record has machine-id %q, the machine %q", got.MachineID, machine)
	}
	c.Cut(t)
	return machine
}

// complete waits until the machine says that it is a node.
func complete(t *testing.T, v *vm.VM) {
	t.Helper()
	const limit = "480"
	if result := v.Run(t, "timeout "+limit+" sh -c 'until test -e "+paths.Complete+"; do sleep 1; done'"); result.Code != 0 {
		t.Fatalf("not a node after %s s\n%s", limit, v.Run(t, "systemctl status --no-pager "+paths.BootUnit+"; journalctl -b -o short-monotonic --no-hostname -u 'unbounded-*' | tail -n 60").Out)
	}
}

// ready waits until the cluster says that the node is Ready in another boot than one before, and tells the boot.
func ready(t *testing.T, v *vm.VM, before string) string {
	t.Helper()
	const pause = time.Second
	var state string
	for deadline := time.Now().Add(readyLimit); time.Now().Before(deadline); <-time.After(pause) {
		out, err := v.Ground.Cluster.TryKubectl(t.Context(), "get", "node", ground.NodeName, "-o",
			`jsonpath={.status.nodeInfo.bootID} {.status.conditions[?(@.type=="Ready")].status}`)
		if err != nil {
			state = err.Error()
			continue
		}
		state = out
		if boot, status, _ := strings.Cut(state, " "); boot != before && status == "True" {
			return boot
		}
	}
	t.Fatalf("the node is not Ready after %v: %s", readyLimit, state)
	return ""
}
