//go:build cluster || fault

package bootstrap

import (
	"os"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

const (
	start      = "systemctl start " + paths.Target
	readyLimit = 2 * time.Minute
)

// startTarget starts the target and demands success.
func startTarget(t *testing.T, g *ground.Ground) time.Duration {
	t.Helper()
	result := g.Run(t, start)
	if result.Code != 0 {
		t.Fatalf("%s = %d\n%s\n%s", start, result.Code, result.Err, journal(t, g))
	}
	return result.Took
}

func journal(t *testing.T, g *ground.Ground) string {
	t.Helper()
	return g.Run(t, "journalctl -b -o short-monotonic --no-hostname -u 'unbounded-*' | tail -n 80").Out
}

// A host is rebooted after each stage, systemd starts the machine where it can, and the retry
// has another label (fault: after each stage; otherwise after two): the applied configuration is always what the running node was built from.
func TestRebootAfterEachStage(t *testing.T) {
	stages := []string{paths.NodeUnit("kube1"), paths.JoinUnit("kube1")} // where the configuration changes hands
	if full {
		stages = paths.StageUnits("kube1")
	}
	for _, unit := range stages {
		if unit == paths.VerifyUnit {
			continue
		}
		t.Run(unit, func(t *testing.T) {
			release := "bookworm"
			g := ground.Boot(t, ground.Options{Host: host.Options{Release: release, Overlay: map[string]host.File{
				paths.SystemdDir + "/" + unit + ".d/50-reboot.conf": {
					Content: "[Service]\nExecStartPost=+/bin/sh -c 'test -e /var/rebooted || { touch /var/rebooted; sync; systemctl reboot -ff; }'\n",
				},
			}}})
			g.Run(t, "systemctl start --no-block "+paths.Target)
			g.WaitReboot(t)
			g.MustRun(t, "rm -r "+paths.SystemdDir+"/"+unit+".d && systemctl daemon-reload")
			g.WriteConfig(t, map[string]any{"Kubelet.Labels.zone": "retry"})
			startTarget(t, g)
			g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
			appliedIsTrue(t, g)
		})
	}
}

// appliedIsTrue holds the applied configuration against the label with which the Node registered.
func appliedIsTrue(t *testing.T, g *ground.Ground) {
	t.Helper()
	node := strings.TrimSpace(g.Cluster.Kubectl(t, "get", "node", ground.NodeName, "-o", "jsonpath={.metadata.labels.zone}"))
	applied := g.ReadFile(t, paths.Applied("kube1"))
	if (node == "retry") != strings.Contains(applied, `"zone": "retry"`) {
		t.Errorf("the Node registered with zone %q, the applied configuration says:\n%s", node, applied)
	}
	built := g.ReadFile(t, paths.Tree("kube1")+paths.Built)
	if built != applied {
		t.Errorf("applied configuration is not what the node was built from")
	}
}
