// Command demo shows the main job on real input: a booted host, a real image from a
// registry, a real kubelet and a real API server. It starts the bootstrap target as
// an operator would, shows what the host says, and ends when the node is Ready.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"unbounded/tests/ground"
	"unbounded/tests/host"
)

func main() { os.Exit(host.Program(os.Stdout, run)) }

// readyLimit is for a machine that does other things too.
const readyLimit = 3 * time.Minute

func run(t host.T) {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	release := flags.String("release", "bookworm", "Debian `release` of the host, bookworm or trixie")
	if err := flags.Parse(os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			t.Fatalf("see demo -help")
		}
		return
	}
	t.Logf("make install, boot a host, start a cluster, a registry and a mirror beside it")
	clock := &clock{t: t, began: time.Now()}
	g := ground.Boot(t, ground.Options{Host: host.Options{Release: *release}})
	clock.step("a host with %s, a cluster, a registry and a mirror", *release)

	t.Logf("\n# systemctl start %s", ground.Target)
	bootstrap(t, g)
	clock.step("systemctl start %s", ground.Target)

	g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
	clock.step("the node is Ready")
	t.Logf("\n# kubectl get nodes -o wide\n%s", g.Cluster.Kubectl(t, "get", "nodes", "-o", "wide"))

	again := g.Run(t, "systemctl start "+ground.Target)
	if again.Code != 0 {
		t.Fatalf("the second start: exit %d: %s", again.Code, again.Err)
	}
	clock.step("systemctl start %s, again", ground.Target)
	showVersions(t, g)
	g.PowerOff(t)
	clock.step("power off")
	clock.show()
}

// bootstrap starts the target and shows the journal meanwhile.
func bootstrap(t host.T, g *ground.Ground) {
	journal := &journal{t: t, host: g.Host, began: time.Now()}
	ended := make(chan host.Result)
	go func() { ended <- g.Run(t, "systemctl start "+ground.Target+"; code=$?; exit $code") }()
	for {
		select {
		case result := <-ended:
			journal.show()
			if result.Code != 0 {
				t.Fatalf("systemctl start: exit %d: %s%s", result.Code, result.Err, g.Run(t, "cat /run/unbounded/last-failure.json").Out)
			}
			return
		case <-time.After(journalPause):
			journal.show()
		}
	}
}

// journalPause is how late a line of the journal is shown at most.
const journalPause = 300 * time.Millisecond

// journal shows what units of the product say.
type journal struct {
	t     host.T
	host  *host.Host
	began time.Time

	cursor string // of the last entry that was shown
}

// show shows what was said since it was called last.
func (j *journal) show() {
	from := "--after-cursor=" + j.cursor
	if j.cursor == "" {
		from = "--since=@" + strconv.FormatInt(j.began.Unix(), 10)
	}
	command := j.host.Command(j.t.Context(), "journalctl", "--output=json", from, "--unit=unbounded*", "--unit=systemd-nspawn@*")
	// journalctl of systemd 257 is not content with a journal that says nothing new.
	out, _ := command.Output()
	for line := range bytes.Lines(out) {
		var e entry
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		j.cursor = e.Cursor
		if !e.noise() {
			j.t.Logf("%7.2f s  %-32s %v", e.at().Sub(j.began).Seconds(), strings.TrimSuffix(e.unit(), ".service"), e.Message)
		}
	}
}

// entry is an entry of the journal, as far as it is shown.
type entry struct {
	Message any    `json:"MESSAGE"` // not a string if it is binary
	Unit    string `json:"UNIT"`    // set by PID 1, about a unit
	Own     string `json:"_SYSTEMD_UNIT"`
	Time    string `json:"__REALTIME_TIMESTAMP"`
	Cursor  string `json:"__CURSOR"`
}

func (e entry) unit() string {
	if e.Unit != "" {
		return e.Unit
	}
	return e.Own
}

// noise is the console of the machine, and what PID 1 says of every unit.
func (e entry) noise() bool {
	if strings.HasPrefix(e.Own, "systemd-nspawn@") {
		return true
	}
	text, _ := e.Message.(string)
	return strings.HasSuffix(text, ": Deactivated successfully.")
}

// at is when the entry was received.
func (e entry) at() time.Time {
	micros, _ := strconv.ParseInt(e.Time, 10, 64)
	return time.UnixMicro(micros)
}

// showVersions shows what met here.
func showVersions(t host.T, g *ground.Ground) {
	const machine = "systemd-run --machine=kube1 --quiet --pipe --wait "
	t.Logf("\nversions")
	for _, line := range []struct{ name, command string }{
		{"host", `. /etc/os-release; echo "$PRETTY_NAME"`},
		{"systemd", "systemctl --version | head -n 1"},
		{"kernel", "uname -r"},
		{"kubelet", machine + "/usr/local/bin/kubelet --version"},
		{"containerd", machine + "/usr/local/bin/containerd --version"},
		{"runc", machine + "/usr/local/bin/runc --version | head -n 1"},
	} {
		t.Logf("  %-12s %s", line.name, strings.TrimSpace(g.MustRun(t, line.command)))
	}
}

// clock notes how long each step took.
type clock struct {
	t     host.T
	began time.Time
	steps []string
}

func (c *clock) step(format string, args ...any) {
	now := time.Now()
	c.steps = append(c.steps, fmt.Sprintf("  %7.2f s  ", now.Sub(c.began).Seconds())+fmt.Sprintf(format, args...))
	c.began = now
}

func (c *clock) show() { c.t.Logf("\ntimings\n%s", strings.Join(c.steps, "\n")) }
