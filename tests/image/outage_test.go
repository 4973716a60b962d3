//go:build cluster

package image_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/internal/record"
	"unbounded/tests/ground"
	"unbounded/tests/host"
	"unbounded/tests/serve"
)

// lateRegistry is where nobody listens at first.
const lateRegistry = host.OutsideIP + ":5001"

// The registry is unreachable during the first boot: the host says what it tries again, waits longer each time, is a host
// like any other meanwhile, and becomes a node when the registry is there.
func TestOutage(t *testing.T) {
	g := prepare(t, host.Options{Overlay: map[string]host.File{
		// Otherwise each attempt waits two minutes itself.
		paths.SystemdDir + "/" + paths.PreflightUnit + ".d/50-patience.conf": {Content: "[Service]\nEnvironment=UNBOUNDED_PREFLIGHT_WAIT=1s\n"},
	}}, map[string]any{"OCIImage": strings.Replace(serve.NodeImage, serve.RegistryAddress, lateRegistry, 1)})
	g.Start(t)
	for attempt := range 2 {
		said := g.Await(t, 2*time.Minute, fmt.Sprintf("systemctl status --no-pager %s | grep 'Status:.*attempt %d failed'", paths.BootUnit, attempt+1))
		if !strings.Contains(said, paths.PreflightUnit) || !strings.Contains(said, "next one in") {
			t.Errorf("status: %s", said)
		}
	}
	g.MustRun(t, "systemctl is-active multi-user.target "+paths.BootUnit)
	// Doubling from ten seconds, by as much again at random.
	waits := regexp.MustCompile(`next one in (\S+)\n`).FindAllStringSubmatch(g.Journal(t, paths.BootUnit), -1)
	for i, least := range []time.Duration{10 * time.Second, 20 * time.Second} {
		if len(waits) <= i {
			t.Fatalf("the journal tells of %d waits", len(waits))
		}
		if wait, err := time.ParseDuration(waits[i][1]); err != nil || wait < least || wait > 2*least {
			t.Errorf("wait %d: %v, %v, want %v to %v", i+1, wait, err, least, 2*least)
		}
	}
	layout, err := host.Artefact("node-image")
	if err != nil {
		t.Fatal(err)
	}
	serve.Start(t, g.Host, lateRegistry, serve.Layout(layout))
	g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
	g.Await(t, readyLimit, "test -e "+paths.Complete+" && ! systemctl is-active "+paths.BootUnit)
}

// Power is lost in the first boots before the host's new machine-id is on its disk, so that each boot has another:
// the boots after are of the same installation.
func TestInterruptedFirstBoot(t *testing.T) {
	const (
		slow     = paths.SystemdDir + "/slow.service"
		slowLink = paths.SystemdDir + "/first-boot-complete.target.requires/slow.service"
		commit   = paths.SystemdDir + "/systemd-machine-id-commit.service"
		isMount  = "mountpoint -q " + paths.MachineID + " && cat " + paths.MachineID
	)
	g := prepare(t, host.Options{Overlay: map[string]host.File{
		paths.MachineID: {Absent: true},
		// What the image does at its first boot, and systemd waits for before it writes the machine-id.
		slow:     {Content: "[Unit]\nDefaultDependencies=no\nBefore=first-boot-complete.target\n[Service]\nType=oneshot\nExecStart=/bin/sleep infinity\n"},
		slowLink: {Link: slow},
	}}, nil)

	g.Start(t)
	first := g.Await(t, time.Minute, isMount+" && systemctl is-active --quiet "+paths.BootUnit+" && systemctl list-jobs | grep -q "+paths.AdmitUnit)
	if g.Exists(t, paths.Record) {
		t.Error("admitted before systemd had its chance to write the machine-id")
	}
	g.PowerCut(t)

	// This time it cannot be written, and is admitted without.
	g.WriteFile(t, slow, host.File{Absent: true})
	g.WriteFile(t, slowLink, host.File{Absent: true})
	g.WriteFile(t, commit, host.File{Link: "/dev/null"})
	g.Start(t)
	second := g.Await(t, time.Minute, "test -e "+paths.Tree(".kube1.partial")+" && "+isMount)
	g.PowerCut(t)
	cut := load(t, g)
	if cut.MachineID != "" {
		t.Errorf("the record has the machine-id %s, which is not on the disk", cut.MachineID)
	}

	g.WriteFile(t, commit, host.File{Absent: true})
	g.Start(t)
	g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
	third := g.MustRun(t, "! mountpoint -q "+paths.MachineID+" && cat "+paths.MachineID)
	if first == second || second == third {
		t.Fatalf("machine-ids %s%s%s, want three", first, second, third)
	}
	now := load(t, g)
	if now.InstallID != cut.InstallID || now.MachineID != strings.TrimSpace(third) {
		t.Errorf("installation %s of %s, want %s of %s", now.InstallID, now.MachineID, cut.InstallID, third)
	}
}

// load reads the record from the host's disk.
func load(t *testing.T, g *ground.Ground) record.Record {
	t.Helper()
	r, err := record.Open(g.Root).Load()
	if err != nil {
		t.Fatalf("record: %v", err)
	}
	return r
}
