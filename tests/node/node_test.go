//go:build cluster

// Package node tests on booted hosts that systemd, nspawn, containerd and kubelet take the
// files of the node stage as they are meant.
package node

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/paths"
	"unbounded/internal/system"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

const slot = "kube1"

// inside runs a shell line in the machine.
func inside(line string) string {
	return `leader=$(machinectl show -p Leader --value ` + slot + `) && nsenter -t "$leader" -m -u -i -n -p -C -- /bin/sh -c '` + line + `'`
}

func releases(t *testing.T, test func(t *testing.T, release string)) {
	t.Helper()
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) { test(t, release) })
	}
}

func TestNode(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		t.Helper()
		g := ground.Boot(t, ground.Options{
			Host: host.Options{Release: release},
			Config: map[string]any{
				"AdditionalHostDevices":      []string{"/dev/full", "/dev/disk-of-today", "/dev/never", "char-vcs"},
				"AdditionalHostMounts":       []any{map[string]any{"Source": "/srv/shared", "Target": "/shared", "ReadOnly": true}},
				"Kubelet.Labels":             map[string]any{"example.test/zone": "a"},
				"Kubelet.RegisterWithTaints": []string{"example.test/new=yes:PreferNoSchedule"},
			},
		})
		g.MustRun(t, "mkdir -p /srv/shared && echo hello >/srv/shared/greeting && mknod /dev/disk-of-today c 1 3")
		if release == "trixie" { // one host with, one without
			g.MustRun(t, "test -c /dev/kmsg || mknod /dev/kmsg c 1 11")
		}
		if result := g.Run(t, "systemctl start "+paths.Target); result.Code != 0 {
			t.Fatalf("start: %s\n%s", result.Err, g.MustRun(t, "journalctl -b -u 'unbounded-*' --no-pager | tail -n 60"))
		}
		g.Cluster.AwaitReady(t, ground.NodeName, 2*time.Minute)
		for _, step := range []struct {
			name string
			run  func(*testing.T, *ground.Ground)
		}{
			{"units are clean", unitsAreClean},
			{"machine is as meant", machineIsAsMeant},
			{"devices can be opened", devicesCanBeOpened},
			{"guest keeps off the host's network", guestKeepsOff},
			{"node object", nodeObject},
			{"second run", secondRun},
			{"reboot without a device", rebootWithoutDevice},
		} {
			t.Run(step.name, func(t *testing.T) { step.run(t, g) })
		}
	})
}

// unitsAreClean: systemd understands every line of the drop-in and the mount unit.
func unitsAreClean(t *testing.T, g *ground.Ground) {
	t.Helper()
	unit := paths.MachineUnit(slot)
	if out := g.MustRun(t, "systemd-analyze verify --man=no --recursive-errors=no "+unit+" "+strings.TrimPrefix(paths.BPFMount(slot), paths.SystemdDir+"/")+" 2>&1"); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	for property, want := range map[string]string{
		"TasksMax": "infinity", "TimeoutStartUSec": "infinity", "Restart": "on-failure", "DevicePolicy": "closed",
	} {
		if have := strings.TrimSpace(g.MustRun(t, "systemctl show -P "+property+" "+unit)); have != want {
			t.Errorf("%s = %s, want %s", property, have, want)
		}
	}
	if have := g.MustRun(t, "findmnt -n -o FSTYPE /run/bpffs/"+slot); strings.TrimSpace(have) != "bpf" {
		t.Errorf("/run/bpffs/%s is %q", slot, have)
	}
	if out := g.MustRun(t, "journalctl -b -u "+unit+" --no-pager | grep -i -E 'unknown|failed to parse|ignoring' || true"); out != "" {
		t.Errorf("nspawn complains: %s", out)
	}
}

func machineIsAsMeant(t *testing.T, g *ground.Ground) {
	t.Helper()
	id := strings.TrimSpace(g.MustRun(t, inside("cat /etc/machine-id")))
	kmsg := "symbolic link"
	if g.Exists(t, "/dev/kmsg") {
		kmsg = "character special file"
	}
	install := strings.TrimSpace(g.MustRun(t, `sed -n 's/.*"installID": "\(.*\)".*/\1/p' `+paths.Record))
	if id != system.ID(install, slot) || id == strings.TrimSpace(g.MustRun(t, "cat /etc/machine-id")) {
		t.Errorf("machine-id is %s", id)
	}
	for _, check := range []struct{ name, line, want string }{
		{"hostname", "cat /proc/sys/kernel/hostname", ground.NodeName},
		{"mount of the host", "cat /shared/greeting", "hello"},
		{"read-only", "touch /shared/x 2>/dev/null || echo refused", "refused"},
		{"bpf", "findmnt -n -o FSTYPE /sys/fs/bpf", "bpf"},
		{"cgroup", "findmnt -n -o FSTYPE /sys/fs/cgroup", "cgroup2"},
		{"net sysctls", "test -w /proc/sys/net/ipv4/ip_forward && echo yes", "yes"},
		{"failed units", "systemctl list-units --no-legend --state=failed | grep -v modules-load || true", ""},
		{"kmsg", "stat -c %F /dev/kmsg", kmsg},
		{"host's log stays out of the machine's", "journalctl -b -k -q --no-pager | wc -l", "0"},
		{"resolv.conf", "cat /etc/resolv.conf", strings.TrimSpace(g.MustRun(t, "cat /etc/resolv.conf 2>/dev/null || true"))},
	} {
		if have := strings.TrimSpace(g.MustRun(t, inside(check.line))); have != check.want {
			t.Errorf("%s: %q, want %q", check.name, have, check.want)
		}
	}
	if out := g.MustRun(t, inside("journalctl -b --no-pager -u containerd -u kubelet | grep -i -E \"unknown key|deprecated|unknown flag\" || true")); strings.TrimSpace(out) != "" {
		t.Logf("services remark: %s", out)
	}
	if out := g.MustRun(t, inside("/usr/local/bin/crictl --runtime-endpoint unix:///run/containerd/containerd.sock info | grep -i -E \"systemdCgroup|sandbox\" || true")); !strings.Contains(strings.ToLower(out), "true") {
		t.Errorf("containerd does not use systemd's cgroups: %s", out)
	}
}

// devicesCanBeOpened: what is bound is allowed too; EPERM is the answer of the device filter.
func devicesCanBeOpened(t *testing.T, g *ground.Ground) {
	t.Helper()
	bound := strings.Fields(g.MustRun(t, `sed -n 's|^Bind=\(/dev/.*\)|\1|p' `+paths.Nspawn(slot)))
	if len(bound) == 0 {
		t.Fatal("no device is bound")
	}
	for _, node := range bound {
		if out := g.Run(t, inside("exec 3<"+node)); strings.Contains(out.Err, "not permitted") {
			t.Errorf("%s: %s", node, out.Err)
		}
	}
}

func guestKeepsOff(t *testing.T, g *ground.Ground) {
	t.Helper()
	for _, unit := range system.Masked() {
		if have := strings.TrimSpace(g.MustRun(t, inside("systemctl show -P LoadState "+unit))); have != "masked" {
			t.Errorf("%s is %s", unit, have)
		}
	}
	if out := g.MustRun(t, inside("systemctl list-units --no-legend --all \"systemd-networkd*\" \"nftables*\" | grep -v masked || true")); strings.Contains(out, " active ") {
		t.Errorf("active in the machine: %s", out)
	}
	if out := g.MustRun(t, "find /var/log/journal -type l 2>/dev/null || true"); out != "" {
		t.Errorf("links in the host's journal: %s", out)
	}
}

func nodeObject(t *testing.T, g *ground.Ground) {
	t.Helper()
	for path, want := range map[string]string{
		`{.metadata.labels.example\.test/zone}`:               "a",
		`{.spec.taints[?(@.key=="example.test/new")].effect}`: "PreferNoSchedule",
		`{.status.nodeInfo.machineID}`:                        strings.TrimSpace(g.MustRun(t, inside("cat /etc/machine-id"))),
	} {
		if have := strings.TrimSpace(g.Cluster.Kubectl(t, "get", "node", ground.NodeName, "-o", "jsonpath="+path)); have != want {
			t.Errorf("%s = %q, want %q", path, have, want)
		}
	}
}

// secondRun: the stage on its own, on a running node, writes nothing.
func secondRun(t *testing.T, g *ground.Ground) {
	t.Helper()
	reinstall := `sed -i 's/"phase": "complete"/"phase": "installing"/' ` + paths.Record + ` && rm -f ` + paths.Complete
	g.MustRun(t, reinstall)
	exclude := append([]string{paths.Tree(slot) + "/var/lib", paths.Tree(slot) + "/etc/cni", paths.Tree(slot) + "/opt"}, host.Noise...)
	before := g.Tree(t, host.TreeOptions{Exclude: exclude})
	g.MustRun(t, "systemctl start "+paths.NodeUnit(slot))
	if diff := cmp.Diff(before, g.Tree(t, host.TreeOptions{Exclude: exclude})); diff != "" {
		t.Errorf("second run (-before +after):\n%s", diff)
	}
	g.MustRun(t, "systemctl start "+paths.Target)
}

// rebootWithoutDevice: the node comes back on a host that has lost a device which the machine was given.
func rebootWithoutDevice(t *testing.T, g *ground.Ground) {
	t.Helper()
	g.MustRun(t, inside("test -c /dev/disk-of-today"))
	g.Reboot(t) // /dev is made anew, without it
	g.Await(t, time.Minute, inside("systemctl is-active containerd kubelet"))
	settings := g.MustRun(t, "cat "+paths.Nspawn(slot))
	if !strings.Contains(settings, "# not there: Bind=/dev/disk-of-today\n") || !strings.Contains(settings, "\nBind=/dev/full\n") {
		t.Errorf("settings after the reboot:\n%s", settings)
	}
}
