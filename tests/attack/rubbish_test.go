//go:build cluster

package attack

import (
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
	"unbounded/tests/serve"
)

// Rubbish where files should be is refused at once, or failed, or lived with, and named; then an unattended boot waits
// for its servers, outlives its own kills and a power cut, joins, and never runs again.
func TestRubbishThenUnattended(t *testing.T) {
	g := ground.Boot(t, ground.Options{})
	good := g.ReadFile(t, paths.Config)
	const config, lock, state = paths.Config, paths.Lock, paths.State
	for _, row := range []struct {
		name, harm, undo string
		status           int
		says             []string
	}{
		{name: "configuration empty", harm: ": > " + config, status: 78, says: []string{config, "is empty"}},
		{name: "configuration binary", harm: "head -c 3000 /dev/urandom > " + config, status: 78, says: []string{config, "not JSON"}},
		{name: "configuration huge", harm: "head -c 50000000 /dev/zero > " + config, status: 78, says: []string{config, "larger than 1 MiB"}},
		{name: "configuration of wrong types", harm: `echo '{"MachineName": 5, "Kubelet": "x"}' > ` + config, status: 78, says: []string{"MachineName: is a number", "Kubelet: is a string"}},
		{name: "configuration is a folder", harm: "rm " + config + " && mkdir " + config, undo: "rmdir " + config, status: 78, says: []string{config, "not a regular file", "remove it"}},
		{name: "configuration is a pipe", harm: "rm " + config + " && mkfifo " + config, undo: "rm " + config, status: 78, says: []string{config, "not a regular file"}},
		{name: "configuration is its own link", harm: "rm " + config + " && ln -s " + config + " " + config, undo: "rm " + config, status: 78, says: []string{config, "not a regular file"}},
		{name: "record is a folder", harm: "mkdir -p " + paths.Record, undo: "rmdir " + paths.Record, status: 78, says: []string{paths.Record, "reset"}},
		{name: "record cut off", harm: "mkdir -p " + state + " && echo '{\"schemaVersion\": 1,' > " + paths.Record, undo: "rm " + paths.Record, status: 78, says: []string{paths.Record, "reset"}},
		{name: "lock is a folder", harm: "rm -f " + lock + " && mkdir " + lock, undo: "rmdir " + lock, status: 1, says: []string{lock, "is a directory"}},
		{name: "state is a file", harm: "rm -rf " + state + " && touch " + state, undo: "rm " + state, status: 1, says: []string{state, "not a directory"}},
		{name: "admitted is a folder", harm: "mkdir -p " + paths.Admitted + "/x", undo: "true", status: 1, says: []string{paths.Admitted}},
	} {
		t.Run(row.name, func(t *testing.T) {
			g.MustRun(t, row.harm)
			began := time.Now()
			fails(t, g, wrong{paths.AdmitUnit, row.status, row.says})
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
			g.MustRun(t, "rm -rf "+paths.Run+"; "+row.undo)
			g.WriteFile(t, config, host.File{Content: good, Mode: 0o600})
		})
	}

	// A token with the end of a line, in a file that all can read, is used and told of.
	g.WriteFile(t, config, host.File{Content: strings.Replace(good, g.Cluster.Token, g.Cluster.Token+`\r\n`, 1), Mode: 0o644})
	g.Registry.Fail("", -1, serve.Answer(503))
	g.Cluster.StopAPI()
	// Not by a reboot: systemd counts the stages among the jobs of its start, and the ground waits for that.
	g.MustRun(t, "systemctl enable --now "+paths.BootUnit)
	const status = "systemctl show -P StatusText "
	waits := g.Await(t, time.Minute, status+paths.PreflightUnit+" | grep waiting")
	for _, says := range []string{"api-server-reachable", "oci-image-reachable"} {
		if !strings.Contains(waits, says) {
			t.Errorf("status %q, want %s in it", waits, says)
		}
	}
	g.MustRun(t, "systemctl kill -s KILL "+paths.PreflightUnit)
	g.Await(t, time.Minute, status+paths.BootUnit+" | grep 'attempt 1 failed: "+paths.PreflightUnit+" was killed; next one in'")
	g.MustRun(t, "systemctl kill -s KILL "+paths.BootUnit)
	g.PowerCut(t)
	g.Registry.Heal()
	g.Cluster.StartAPI(t)
	g.On(t)
	g.Await(t, readyLimit, "test -e "+paths.Complete+" && ! systemctl is-active "+paths.BootUnit)
	g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
	if told := g.Run(t, "journalctl -b -o cat -u "+paths.PreflightUnit+" | grep 'mode 0644.*chmod 600'"); told.Code != 0 {
		t.Error("nothing was said of a configuration that all can read")
	}
	g.Reboot(t)
	if got := g.MustRun(t, "systemctl show -P ConditionResult "+paths.BootUnit); got != "no\n" {
		t.Errorf("the condition of %s on a complete host is %q", paths.BootUnit, got)
	}
	if ran := g.MustRun(t, "journalctl -b -o cat -u 'unbounded-*' _PID=1 + SYSLOG_IDENTIFIER=unbounded-boot + SYSLOG_IDENTIFIER=unbounded-admission"); strings.Contains(ran, "admitted") {
		t.Errorf("the bootstrap ran on a complete host:\n%s", ran)
	}
}
