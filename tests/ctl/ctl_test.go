//go:build host

// Package ctl tests unboundedctl on booted hosts: what it asks, follows, survives, and takes off.
package ctl

import (
	"os"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

const (
	program = paths.DefaultRoot + "/current/unboundedctl"
	reset   = program + " reset --yes"
	limit   = 30 * time.Second

	record = `{"schemaVersion":1,"installID":"00112233445566778899aabbccddeeff","machineName":"m1","configFingerprint":"` +
		`c450aef0b3255c61d169b528949df158234f16391c2a70d03548e7698976aade","phase":"complete"}`
)

// leftovers are what a node leaves that nobody runs any more, made by hand, and what is the operator's.
func leftovers() map[string]host.File {
	const unit = paths.SystemdDir + "/"
	return map[string]host.File{
		unit + paths.DaemonUnit: {
			// It fails when it is stopped, which starts recovery.
			Content: "[Unit]\nOnFailure=" + paths.RecoveryUnit + "\n[Service]\nExecStart=/bin/sleep infinity\nKillSignal=SIGKILL\nRestart=always\n" +
				"[Install]\nWantedBy=multi-user.target\n",
		},
		unit + "multi-user.target.wants/" + paths.DaemonUnit: {Link: "../" + paths.DaemonUnit},
		unit + paths.DaemonUnit + ".d/proxy.conf":            {Content: "[Service]\nEnvironment=A=b\n"},
		unit + paths.RecoveryUnit:                            {Content: "[Service]\nType=oneshot\nExecStart=/usr/local/bin/unbounded-agent-daemon-recovery.sh\n"},
		"/usr/local/bin/unbounded-agent-daemon-recovery.sh": {
			Content: "#!/bin/sh\ntouch /root/recovered\nexec systemctl restart --no-block " + paths.DaemonUnit + "\n", Mode: 0o755,
		},
		unit + "unbounded-agent-bootstrap.service": {
			Content: "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
		},
		unit + "multi-user.target.wants/unbounded-agent-bootstrap.service": {Link: "../unbounded-agent-bootstrap.service"},
		unit + "nftables-flush.service": {
			Content: "[Service]\nType=oneshot\nExecStart=/usr/sbin/nft -f /etc/unbounded/kube/nftables-clear.nft\n[Install]\nRequiredBy=systemd-nspawn@.service\n",
		},
		unit + "systemd-nspawn@.service.requires/nftables-flush.service": {Link: "../nftables-flush.service"},
		"/etc/unbounded/kube/nftables-clear.nft":                         {Content: "flush ruleset\n", Mode: 0o600},
		"/usr/local/bin/unbounded-agent":                                 {Content: "github.com/Azure/unbounded/cmd/agent", Mode: 0o755},
		paths.ConfigDir + "/daemon-controller/client.key":                {Content: "key", Mode: 0o600},
		paths.ConfigDir + "/agent-upgrade-signal":                        {Content: "{}", Mode: 0o600},
		paths.Applied("kube1"):                                           {Content: "{}", Mode: 0o600},
		paths.Nspawn("kube1"):                                            {Content: "[Exec]\nBoot=yes\n"},

		paths.Config:                                {Content: "{}", Mode: 0o600},
		"/opt/unbounded/agent/notes.txt":            {Content: "of the operator"},
		"/usr/local/bin/unbounded-agent-current":    {Content: "#!/bin/sh\n# of the operator\n", Mode: 0o755},
		"/tmp/unbounded-agent-config.a1b2.json":     {Content: "{}", Mode: 0o600},
		unit + "multi-user.target.wants/op.service": {Link: "../op.service"},
		unit + "op.service":                         {Content: "[Service]\nExecStart=/bin/sleep infinity\n"},
	}
}

// operators are those of leftovers that survive.
var operators = []string{
	paths.Config, "/opt/unbounded/agent/notes.txt", "/usr/local/bin/unbounded-agent-current",
	paths.SystemdDir + "/multi-user.target.wants/op.service", paths.SystemdDir + "/op.service",
}

func releases(t *testing.T, test func(t *testing.T, h *host.Host), overlay map[string]host.File) {
	t.Helper()
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			test(t, host.Boot(t, host.Options{Release: release, Overlay: overlay}))
		})
	}
}

// expect runs a command line and holds it to a status and to what it says.
func expect(t *testing.T, h *host.Host, line string, status int, says ...string) string {
	t.Helper()
	got := h.Run(t, line)
	said := got.Out + got.Err
	if got.Code != status {
		t.Fatalf("%s = %d, want %d\n%s\n%s", line, got.Code, status, said, h.Run(t, "journalctl -b -o cat -u 'unbounded-*' | tail -n 60").Out)
	}
	for _, text := range says {
		if !strings.Contains(said, text) {
			t.Errorf("%s does not say %q:\n%s", line, text, said)
		}
	}
	return said
}

// slow makes a stage of reset take long, or do something else first.
func slow(t *testing.T, h *host.Host, unit, lines string) {
	t.Helper()
	h.WriteFile(t, paths.SystemdDir+"/"+unit+".d/test.conf", host.File{Content: "[Service]\n" + lines})
	h.MustRun(t, "systemctl daemon-reload")
}

func fast(t *testing.T, h *host.Host, unit string) {
	t.Helper()
	h.MustRun(t, "rm -r "+paths.SystemdDir+"/"+unit+".d && systemctl daemon-reload")
}

func TestReset(t *testing.T) {
	releases(t, func(t *testing.T, h *host.Host) {
		h.MustRun(t, "systemctl is-active --quiet "+paths.DaemonUnit)
		said := expect(t, h, reset, 0, "is as it was before")
		for _, unit := range paths.ResetUnits() {
			if !strings.Contains(said, unit+" ") {
				t.Errorf("nothing said of %s:\n%s", unit, said)
			}
		}
		stays := map[string]bool{}
		for _, path := range operators {
			stays[path] = true
		}
		for path := range leftovers() {
			if got := h.Exists(t, path); got != stays[path] {
				t.Errorf("%s: there %v, want %v", path, got, stays[path])
			}
		}
		if h.Exists(t, "/root/recovered") {
			t.Error("recovery ran")
		}
		if left := h.MustRun(t, "systemctl list-units --all --no-legend 'unbounded-agent*' 'nftables-flush*'"); strings.TrimSpace(left) != "" {
			t.Errorf("systemd still knows:\n%s", left)
		}
		if h.Exists(t, paths.Record) {
			t.Error("the record is there")
		}
		h.MustRun(t, "journalctl --rotate --vacuum-time=1s 2>/dev/null; journalctl --sync")
		since := strings.TrimSpace(h.MustRun(t, "date +%s"))
		expect(t, h, reset, 0)
		changed := h.MustRun(t, "journalctl -o cat --since=@"+since+" UNBOUNDED_STAGE=unbounded-daemon-install + UNBOUNDED_STAGE=unbounded-legacy | grep -v '^done$' || true")
		if strings.Contains(changed, "removed") || strings.Contains(changed, "stopped") {
			t.Errorf("the second run changed:\n%s", changed)
		}
	}, leftovers())
}

func TestFollow(t *testing.T) {
	releases(t, func(t *testing.T, h *host.Host) {
		t.Run("a stage fails", func(t *testing.T) {
			slow(t, h, paths.ResetStateUnit, "ExecStart=\nExecStart=/bin/sh -c 'echo a word in the journal; exit 78'\n")
			expect(t, h, reset, 78, paths.ResetStateUnit+" failed: ", "a word in the journal", "systemctl start "+paths.ResetTarget,
				"journalctl -b -u "+paths.ResetStateUnit, "exit status 78")
			expect(t, h, program+" uninstall --yes", 78, "reset it first")
			slow(t, h, paths.ResetStateUnit, "ExecStart=\nExecStart=/bin/sh -c 'kill -9 $$$$'\n")
			expect(t, h, reset, 1, "signal 9")
			fast(t, h, paths.ResetStateUnit)
			expect(t, h, reset, 0)
		})
		t.Run("the question", func(t *testing.T) {
			h.WriteFile(t, paths.Record, host.File{Content: record, Mode: 0o600})
			expect(t, h, program+" reset </dev/null", 64, "--yes")
			ask := func(answer string) string {
				return "printf '" + answer + "' | script -qec '" + program + " reset' /dev/null"
			}
			name := strings.TrimSpace(h.MustRun(t, "hostname"))
			expect(t, h, ask(`n\n`), 1, "Reset "+name+"? [y/N]", "m1 (phase complete)", "nothing was changed")
			expect(t, h, ask(`\n`), 1, "nothing was changed")
			if got := h.ReadFile(t, paths.Record); got != record {
				t.Errorf("the record is now %s", got)
			}
			expect(t, h, ask(`y\n`), 0, "is as it was before")
		})
		t.Run("without it", func(t *testing.T) {
			slow(t, h, paths.ResetTreesUnit, "ExecStartPre=/bin/sleep 3\n")
			run := "systemctl start " + paths.ResetTarget + " --no-block"
			for _, end := range []struct{ name, line, says string }{
				{"killed", `{ ` + reset + ` & } ; p=$!; ` + wait + `kill -9 $p; wait $p; test $? = 137`, ""},
				{"interrupted", `{ ` + reset + ` & } ; p=$!; ` + wait + `kill -TERM $p; wait $p; test $? = 130`, "the reset goes on"},
				{"met", run + `; ` + wait + reset, "is as it was before"},
				{"re-executed", `{ ` + reset + ` & } ; p=$!; ` + wait + `systemctl daemon-reexec; wait $p`, "is as it was before"},
				{"another bus", `{ ` + reset + ` & } ; p=$!; ` + wait + `systemctl restart dbus; wait $p`, "is as it was before"},
			} {
				h.WriteFile(t, paths.Record, host.File{Content: record, Mode: 0o600})
				expect(t, h, end.line, 0, end.says)
				h.Await(t, limit, "test ! -e "+paths.Record+" && ! systemctl is-active --quiet 'unbounded-reset*'")
				if failed := h.MustRun(t, "systemctl list-units --no-legend --failed 'unbounded*'"); failed != "" {
					t.Errorf("%s: %s", end.name, failed)
				}
			}
			fast(t, h, paths.ResetTreesUnit)
		})
	}, nil)
}

// wait is until the stage that was made slow runs.
const wait = `until systemctl is-active ` + paths.ResetTreesUnit + ` | grep -q activating; do sleep 0.1; done; `

func TestUninstall(t *testing.T) {
	releases(t, func(t *testing.T, h *host.Host) {
		own := host.File{Content: "x"}
		h.WriteFile(t, paths.DefaultRoot+"/agent/notes.txt", own)
		h.WriteFile(t, paths.DefaultRoot+"/doc/notes.md", own)
		h.WriteFile(t, paths.SystemdDir+"/unbounded-of-the-operator.service", host.File{Content: "[Service]\nExecStart=/bin/true\n"})
		h.WriteFile(t, paths.Config, host.File{Content: "{}", Mode: 0o600})

		h.WriteFile(t, paths.Record, host.File{Content: record, Mode: 0o600})
		expect(t, h, program+" uninstall --yes", 78, "reset it first")
		h.MustRun(t, "rm "+paths.Record)
		h.MustRun(t, "systemd-run -q --unit=unbounded-boot --service-type=exec sleep infinity 2>/dev/null || systemctl start unbounded-boot")
		expect(t, h, program+" uninstall --yes", 78, "still active: unbounded-boot.service", "systemctl stop")
		// What the boot unit has asked for goes on; its end, and what says why it failed, is waited for.
		h.MustRun(t, "systemctl stop unbounded-boot; systemctl enable unbounded-boot")
		h.Await(t, limit, "test -z \"$(systemctl list-jobs --no-legend 'unbounded-*' | grep -v "+paths.FailedUnit+")\"")
		expect(t, h, program+" uninstall </dev/null", 64)
		said := expect(t, h, "printf 'yes\n' | script -qec '"+program+" uninstall' /dev/null", 0, "units removed", paths.DefaultRoot+"/doc/notes.md", "kept: ")
		left := h.MustRun(t, "find /opt/unbounded /etc/unbounded /usr/local/lib/systemd -type f -o -type l 2>/dev/null || true")
		if want := "/opt/unbounded/agent/notes.txt\n/opt/unbounded/doc/notes.md\n"; sorted(left) != want {
			t.Errorf("left:\n%s\nwant\n%s\n%s", left, want, said)
		}
		units := h.MustRun(t, "systemctl list-unit-files --no-legend 'unbounded*' | cut -d' ' -f1; find /etc/systemd -name 'unbounded*'")
		if want := "unbounded-of-the-operator.service\n" + paths.SystemdDir + "/unbounded-of-the-operator.service\n"; units != want {
			t.Errorf("units left:\n%s", units)
		}
		if got := h.Run(t, "systemctl show -P NeedDaemonReload unbounded-admit.service; systemctl list-units --all --no-legend 'unbounded*'"); strings.Contains(got.Out, "yes") || strings.Contains(got.Out, "unbounded-") {
			t.Errorf("systemd still knows: %s", got.Out)
		}
	}, nil)
}

func sorted(lines string) string {
	all := strings.Split(strings.TrimSpace(lines), "\n")
	if len(all) == 2 && all[0] > all[1] {
		all[0], all[1] = all[1], all[0]
	}
	return strings.Join(all, "\n") + "\n"
}
