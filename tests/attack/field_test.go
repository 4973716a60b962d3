//go:build cluster

package attack

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"unbounded/internal/failure"
	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
	"unbounded/tests/serve"
)

// wrong is what one failed start has to say.
type wrong struct {
	unit   string
	status int
	says   []string
}

// fails starts the target and holds it to failing with exactly one line of ours, that of the failure file.
func fails(t *testing.T, g *ground.Ground, want wrong) {
	t.Helper()
	since := strings.TrimSpace(g.MustRun(t, "date +%s.%N"))
	result := g.Run(t, "systemctl start "+paths.Target)
	if result.Code != 1 {
		t.Errorf("start = %d after %v, want 1", result.Code, result.Took)
	}
	g.MustRun(t, "journalctl --sync")
	said := host.Lines(g.MustRun(t, "journalctl -b -o json --output-fields=MESSAGE,SYSLOG_IDENTIFIER -p err --since @"+since))
	var ours []string
	for _, line := range said {
		var entry struct {
			Message    string `json:"MESSAGE"`
			Identifier string `json:"SYSLOG_IDENTIFIER"`
		}
		if json.Unmarshal([]byte(line), &entry) == nil && strings.HasPrefix(entry.Identifier, "unbounded-") {
			ours = append(ours, entry.Message)
		}
	}
	var f failure.Failure
	if err := json.Unmarshal([]byte(g.ReadFile(t, paths.LastFailure)), &f); err != nil {
		t.Fatal(err)
	}
	if len(ours) != 1 || ours[0] != f.Cause {
		t.Errorf("error lines %q, want one, %q", ours, f.Cause)
	}
	if unit := g.MustRun(t, "journalctl -b -o cat -u "+want.unit+" --since @"+since); !strings.Contains(unit, f.Cause) {
		t.Errorf("journalctl -u %s does not show %q:\n%s", want.unit, f.Cause, unit)
	}
	if f.Unit != want.unit || f.Status != want.status {
		t.Errorf("last failure is %s with %d, want %s with %d: %s", f.Unit, f.Status, want.unit, want.status, f.Cause)
	}
	for _, says := range want.says {
		if !strings.Contains(f.Cause, says) {
			t.Errorf("%q, want %q in it", f.Cause, says)
		}
	}
}

// A bad night, then a start while the bus, its services and systemd itself are restarted: each failure has its
// line, no secret is in any of them, and at the end the node is Ready.
func TestField(t *testing.T) {
	g := ground.Boot(t, ground.Options{Host: host.Options{Release: "trixie"}})
	rootfs := paths.RootfsUnit("kube1")
	for _, row := range []struct {
		name   string
		set    func()
		undo   string
		config map[string]any
		want   wrong
	}{
		{
			name: "registry wants credentials", set: func() { g.Registry.Fail("", -1, serve.Token(g.Registry.URL, "user", "canarypassword")) },
			want: wrong{paths.PreflightUnit, 1, []string{"401", "RegistryAuthFile"}},
		},
		{
			name: "registry has no such image", set: func() { g.Registry.Fail("manifests", -1, serve.Answer(404)) },
			want: wrong{paths.PreflightUnit, 1, []string{"404", "check OCIImage"}},
		},
		{
			name: "registry lost a blob", set: func() { g.Registry.Fail("blobs", -1, serve.Answer(404)) },
			want: wrong{rootfs, 1, []string{"get blob sha256:", "404"}},
		},
		{
			name: "registry damages blobs", set: func() { g.Registry.Fail("blobs", -1, serve.Corrupt(300)) },
			want: wrong{rootfs, 1, []string{"not the promised content", "want "}},
		},
		{
			name: "registry is busy for a day", set: func() { g.Registry.Fail("blobs", -1, serve.Answer(429, "Retry-After", "100000")) },
			want: wrong{rootfs, 1, []string{"429", "27h46m40s"}},
		},
		{
			name: "mirror refuses", set: func() { g.Mirror.Fail("runc", -1, serve.Answer(403)) },
			config: map[string]any{"Downloads.Runc.URL": g.Mirror.URL + "/runc?sig=canarysignature"},
			want:   wrong{paths.PreflightUnit, 1, []string{"403", "Downloads.Runc"}},
		},
		{
			name: "another CA", config: map[string]any{"Cluster.CaCertBase64": otherCA(t, g)},
			want: wrong{paths.PreflightUnit, 1, []string{"is not trusted", "Cluster.CaCertBase64"}},
		},
		{
			name: "a foreign process on kubelet's port", undo: "systemctl stop squatter",
			set: func() {
				g.MustRun(t, `systemd-run -q --unit=squatter perl -e 'use IO::Socket::INET; $s = IO::Socket::INET->new(LocalPort => 10250, Listen => 5) or die; sleep 1000' && timeout 20 sh -c 'until ss -ltn | grep -q 10250; do sleep 0.1; done'`)
			},
			want: wrong{paths.PreflightUnit, 1, []string{"10250", "perl", "squatter.service", "stop"}},
		},
		{
			name: "small disk for the machine", set: func() { g.MustRun(t, "mount -t tmpfs -o size=100m small "+paths.Machines) }, undo: "umount " + paths.Machines,
			want: wrong{paths.PreflightUnit, 1, []string{"disk-space", paths.Machines, "GiB are needed"}},
		},
		{
			name: "small disk, check ignored", set: func() { g.MustRun(t, "mount -t tmpfs -o size=100m small "+paths.Machines) },
			undo:   "test -z \"$(ls -A " + paths.Machines + ")\" && umount " + paths.Machines,
			config: map[string]any{"Preflight.IgnoreErrors": []any{"disk-space"}},
			want:   wrong{rootfs, 1, []string{"MB more are needed", paths.Machines}},
		},
		{
			name: "the lock is held", undo: "systemctl stop holder",
			set: func() {
				g.MustRun(t, "systemd-run -q --unit=holder flock -x "+paths.Lock+" sleep 1000; timeout 20 sh -c 'while flock -n -s "+paths.Lock+" true; do sleep 0.1; done'")
			},
			want: wrong{paths.AdmitUnit, 75, []string{paths.Lock, "holder.service"}},
		},
		{
			name: "read-only /etc", set: func() { g.MustRun(t, "mount --bind /etc /etc && mount -o remount,bind,ro /etc") }, undo: "umount /etc",
			want: wrong{paths.PreflightUnit, 1, []string{"read-only", "remount /etc"}},
		},
		{
			name: "token unknown", config: map[string]any{"Kubelet.Auth.BootstrapToken": "joiner.canarydeadbeef00"},
			want: wrong{paths.JoinUnit("kube1"), 1, []string{"token is rejected", "Kubelet.Auth.BootstrapToken"}},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			g.WriteConfig(t, row.config)
			if row.set != nil {
				row.set()
			}
			fails(t, g, row.want)
			// A failed stage ends the start; those that do not need it go on.
			g.Await(t, time.Minute, `test -z "$(systemctl list-jobs --no-legend 'unbounded-*')"`)
			g.Registry.Heal()
			g.Mirror.Heal()
			if row.undo != "" {
				g.MustRun(t, row.undo)
			}
		})
	}
	secrets(t, g)

	g.WriteConfig(t, nil)
	g.MustRun(t, "systemctl stop "+paths.MachineUnit("kube1")+" && systemctl start --no-block "+paths.Target)
	g.MustRun(t, `for i in $(seq 20); do
		systemctl daemon-reload
		case $i in 5) systemctl daemon-reexec ;; 10) systemctl restart dbus ;; 15) systemctl kill -s KILL systemd-machined || true ;; esac
		sleep 0.1
	done; until ! systemctl list-jobs | grep -q `+paths.Target+`; do sleep 0.1; done`)
	startTarget(t, g)
	g.MustRun(t, "systemctl kill -s KILL "+paths.MachineUnit("kube1"))
	g.Await(t, time.Minute, "systemctl is-active "+paths.MachineUnit("kube1")+" && systemctl -M kube1 is-active containerd && systemctl -M kube1 is-active kubelet")
	startTarget(t, g)
	g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
	secrets(t, g)
}

// otherCA is a certificate that has nothing to do with the cluster.
func otherCA(t *testing.T, g *ground.Ground) string {
	t.Helper()
	g.MustRun(t, "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout /dev/null -subj /CN=other -days 10 -out /root/other.pem")
	return base64.StdEncoding.EncodeToString([]byte(g.ReadFile(t, "/root/other.pem")))
}

// secrets looks for what no other than root may read: tokens, passwords and signatures, all of which begin alike.
func secrets(t *testing.T, g *ground.Ground) {
	t.Helper()
	// By a file: the search must not find its own arguments.
	const pattern = "/dev/secrets"
	g.WriteFile(t, pattern, host.File{Content: "canary[0-9a-f]\\{10\\}\ncanarypassword\ncanarysignature\n", Mode: 0o600})
	for what, command := range map[string]string{
		"the journal":                "journalctl -o export --no-pager; journalctl -M kube1 -o export --no-pager",
		"unit properties":            "systemctl show '*' --all; systemctl status --no-pager '*'",
		"arguments and environments": "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ",
		"files that others can read": "find /etc /run /tmp /var/tmp /var/lib/unbounded /opt/unbounded -xdev -type f ! -perm 600 -exec cat {} +",
	} {
		script := fmt.Sprintf("{ %s; } 2>/dev/null | grep -a -c -f %s", command, pattern)
		if found := strings.TrimSpace(g.Run(t, script).Out); found != "0" {
			t.Errorf("a secret is in %s, %s times", what, found)
		}
	}
}
