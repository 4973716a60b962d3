//go:build host

// Package machine holds the tests of what speaks to systemd and runs machines, on booted hosts.
package machine

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"unbounded/internal/config"
	"unbounded/internal/nspawn"
	"unbounded/internal/paths"
	"unbounded/tests/host"
	"unbounded/units"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

func releases(t *testing.T, f func(t *testing.T, release string)) {
	t.Helper()
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			f(t, release)
		})
	}
}

// inside skips a test that must run on a booted host: TestInside runs this program there.
func inside(t *testing.T) {
	t.Helper()
	if os.Getenv("UNBOUNDED_INSIDE") == "" {
		t.Skip("runs inside a booted host, by TestInside")
	}
}

// TestInside runs the tests called TestInside… inside a host of each release.
func TestInside(t *testing.T) {
	if os.Getenv("UNBOUNDED_INSIDE") != "" {
		t.Skip("is inside")
	}
	program := filepath.Join(t.TempDir(), "machine.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "host", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // for the C library of whatever host
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	releases(t, func(t *testing.T, release string) {
		h := host.Boot(t, host.Options{Release: release, Bare: true, Args: bindTree(t), Overlay: map[string]host.File{
			"/opt/machine.test": {Content: string(content), Mode: 0o755},
		}})
		plant(t, h)
		h.WriteFile(t, paths.RunSlot+"/kube1", host.File{})
		h.MustRun(t, "systemctl daemon-reload")
		result := h.Run(t, "UNBOUNDED_INSIDE=1 /opt/machine.test -test.v -test.timeout=4m -test.run '"+cmp.Or(os.Getenv("INSIDE_RUN"), "^TestInside.")+"'")
		t.Log(result.Out)
		if result.Code != 0 || !strings.Contains(result.Out, "--- PASS: TestInside") {
			t.Errorf("inside: %d\n%s", result.Code, result.Err)
		}
	})
}

const (
	containerd = `[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/usr/bin/socat UNIX-LISTEN:/run/containerd/containerd.sock,fork,unlink-early SYSTEM:true
RuntimeDirectory=containerd
[Install]
WantedBy=multi-user.target
`
	kubelet = `[Unit]
ConditionPathExists=` + paths.Built + `
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
`
	tree      = "/var/lib/machines/kube1"
	stageUnit = "t-machine@kube1.service"
	bootLimit = 30 * time.Second
)

// configuration is one that passes every check.
func configuration(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	encoded := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return fmt.Sprintf(`{"MachineName":"m1","Cluster":{"Version":"v1.37.2","CaCertBase64":%q,"ClusterDNS":"10.96.0.10"},
		"Kubelet":{"ApiServer":"https://api.test:6443","Auth":{"BootstrapToken":"abcdef.0123456789abcdef"}},"OCIImage":"r.test/node:1"}`, encoded)
}

// alone is the unit of a stage as it is, but for its dependencies.
func alone(t *testing.T, unit string) string {
	t.Helper()
	rendered, err := units.Rendered(paths.DefaultRoot)
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(rendered[unit]) {
		if !strings.HasPrefix(line, "Requires=") && !strings.HasPrefix(line, "After=") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// bindTree shows a host the tree of a machine as /mnt.
func bindTree(t *testing.T) []string {
	t.Helper()
	node, err := host.Artefact("node-tree")
	if err != nil {
		t.Fatal(err)
	}
	return []string{"--bind-ro=" + node + ":/mnt"}
}

// boot boots a host that is admitted and has a machine in kube1.
func boot(t *testing.T, release string) *host.Host {
	t.Helper()
	h := host.Boot(t, host.Options{
		Release: release, Args: bindTree(t),
		Overlay: map[string]host.File{
			paths.Config:                             {Content: configuration(t), Mode: 0o600},
			"/etc/systemd/system/t-machine@.service": {Content: alone(t, "unbounded-machine@.service")},
		},
	})
	h.MustRun(t, "systemctl start "+paths.AdmitUnit)
	plant(t, h)
	return h
}

// plant makes what the rootfs and node stages make, with stubs of containerd and kubelet.
func plant(t *testing.T, h *host.Host) {
	t.Helper()
	h.MustRun(t, "cp -a /mnt "+tree+" && rm -f "+tree+"/etc/machine-id")
	var c config.Config
	slot := "kube1"
	for path, content := range map[string]string{
		paths.Nspawn(slot):                              nspawn.Settings(slot, &c, nspawn.Devices{}),
		paths.DropInFile(slot):                          nspawn.DropIn(slot, paths.DefaultRoot, &c, nspawn.Devices{}),
		paths.BPFMount(slot):                            nspawn.Mount(slot),
		tree + "/etc/machine-id":                        strings.Repeat("0123456789abcdef", 2) + "\n",
		tree + "/etc/systemd/system/containerd.service": containerd,
		tree + "/etc/systemd/system/kubelet.service":    kubelet,
		tree + paths.Built:                              "{}\n",
	} {
		h.WriteFile(t, path, host.File{Content: content})
	}
	for _, unit := range append(paths.Firewalls(), "systemd-networkd.service", "systemd-networkd.socket", "systemd-resolved.service", "systemd-sysctl.service") {
		h.WriteFile(t, tree+"/etc/systemd/system/"+unit, host.File{Link: "/dev/null"})
	}
}

// state is the process ids of nspawn, machine, containerd and kubelet.
func state(t *testing.T, h *host.Host) string {
	t.Helper()
	return h.MustRun(t, `systemctl show -P MainPID systemd-nspawn@kube1; machinectl show kube1 -p Leader --value;
		systemctl -M kube1 show -P MainPID containerd; systemctl -M kube1 show -P MainPID kubelet`)
}

const hash = `{ find / -xdev \( -path /run -o -path /proc -o -path /sys -o -path /tmp -o -path /var/tmp -o -path /var/log -o -path /mnt \) -prune -o -printf '%p %m %U %G %T@ %l\n';
	find /var/lib/machines /var/lib/unbounded /run/unbounded -xdev -printf '%p %m %U %G %T@ %l\n' | grep -v -e var/log -e '/run/utmp' -e '/var/tmp' -e '/var/lib/systemd'; } | sort | sha256sum`

func TestMachine(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		h := boot(t, release)
		converge := func(t *testing.T) {
			t.Helper()
			if got := h.Run(t, "systemctl start "+stageUnit); got.Code != 0 {
				t.Fatalf("systemctl start = %d\n%s\n%s", got.Code, h.Journal(t, stageUnit), h.MustRun(t, "journalctl -b -o short-monotonic -u systemd-nspawn@kube1 | tail -n 30"))
			}
		}
		fails := func(t *testing.T, status string, says ...string) {
			t.Helper()
			if got := h.Run(t, "systemctl start "+stageUnit); got.Code == 0 {
				t.Fatal("the stage succeeded, want a failure")
			}
			if got := strings.TrimSpace(h.MustRun(t, "systemctl show -P ExecMainStatus "+stageUnit)); got != status {
				t.Errorf("exit status %s, want %s", got, status)
			}
			line := h.MustRun(t, "journalctl -b -o cat -p err UNBOUNDED_STAGE=unbounded-machine | tail -n 1")
			t.Log(line)
			for _, say := range says {
				if !strings.Contains(line, say) {
					t.Errorf("%q does not name %q", line, say)
				}
			}
		}
		pids := func(t *testing.T) []string {
			t.Helper()
			return strings.Fields(state(t, h))
		}

		t.Run("fresh", func(t *testing.T) {
			converge(t)
			if got := h.MustRun(t, "systemctl is-active systemd-nspawn@kube1; systemctl is-enabled systemd-nspawn@kube1; systemctl -M kube1 is-active containerd kubelet; systemctl -M kube1 is-enabled containerd kubelet"); got != "active\nenabled\nactive\nactive\nenabled\nenabled\n" {
				t.Errorf("after the first start: %q", got)
			}
			h.MustRun(t, "test -e /run/unbounded/run/kube1")
		})
		t.Run("second start changes nothing", func(t *testing.T) {
			before, files := state(t, h), h.MustRun(t, hash)
			converge(t)
			if after := state(t, h); after != before {
				t.Errorf("processes %q, want %q", after, before)
			}
			if after := h.MustRun(t, hash); after != files {
				t.Error("a second start wrote something")
			}
		})
		t.Run("two at the same time", func(t *testing.T) {
			before := state(t, h)
			program := paths.DefaultRoot + "/current/unbounded-machine converge kube1"
			h.MustRun(t, program+" & one=$!; "+program+" & two=$!; wait $one && wait $two")
			if after := state(t, h); after != before {
				t.Errorf("processes %q, want %q", after, before)
			}
		})
		t.Run("a mark restarts its service only", func(t *testing.T) {
			before := pids(t)
			h.MustRun(t, "mkdir -p /run/unbounded/restart "+tree+"/etc/systemd/system/kubelet.service.d && touch /run/unbounded/restart/kube1.kubelet")
			h.WriteFile(t, tree+"/etc/systemd/system/kubelet.service.d/10-new.conf", host.File{Content: "[Service]\nEnvironment=NEW=1\n"})
			converge(t)
			after := pids(t)
			if before[2] != after[2] || before[3] == after[3] {
				t.Errorf("processes %v, then %v, want another kubelet only", before, after)
			}
			if got := h.MustRun(t, "systemctl -M kube1 show -P Environment kubelet"); got != "NEW=1\n" {
				t.Errorf("environment %q: the drop-in was not read", got)
			}
			h.MustRun(t, "test -z \"$(ls /run/unbounded/restart)\"")
			before = after
			h.MustRun(t, "touch /run/unbounded/restart/kube1.containerd.claimed # killed before it was forgotten")
			converge(t)
			if after := pids(t); before[2] == after[2] || before[3] != after[3] {
				t.Errorf("processes %v, then %v, want another containerd only", before, after)
			}
		})
		t.Run("a stopped and a failed service are started", func(t *testing.T) {
			before := pids(t)
			h.MustRun(t, "systemctl -M kube1 stop kubelet")
			converge(t)
			h.MustRun(t, "systemctl -M kube1 kill -s KILL kubelet")
			h.Await(t, time.Minute, "systemctl -M kube1 is-failed kubelet")
			converge(t)
			if after := pids(t); before[2] != after[2] || before[3] == after[3] {
				t.Errorf("processes %v, then %v, want another kubelet only", before, after)
			}
		})
		t.Run("machined masked while the machine runs", func(t *testing.T) {
			before := state(t, h)
			h.MustRun(t, "systemctl mask --now systemd-machined.service")
			converge(t)
			h.MustRun(t, "systemctl unmask systemd-machined.service && systemctl start systemd-machined.service")
			if after := state(t, h); after != before {
				t.Errorf("processes %q, want %q", after, before)
			}
		})
		t.Run("killed nspawn", func(t *testing.T) {
			for range 3 {
				before := pids(t)
				h.MustRun(t, "kill -KILL $(systemctl show -P MainPID systemd-nspawn@kube1)")
				converge(t)
				if after := pids(t); before[1] == after[1] {
					t.Errorf("leader %s, want another than before", after[1])
				}
			}
			h.MustRun(t, "kill -KILL $(systemctl show -P MainPID systemd-nspawn@kube1)")
			h.Await(t, time.Minute, "test $(systemctl show -P SubState systemd-nspawn@kube1) = auto-restart")
			converge(t)
			state(t, h)
		})
		t.Run("killed nspawn comes back by itself", func(t *testing.T) {
			const restarts = "systemctl show -P NRestarts systemd-nspawn@kube1"
			before := pids(t)
			count, _ := strconv.Atoi(strings.TrimSpace(h.MustRun(t, restarts)))
			h.MustRun(t, "kill -KILL $(systemctl show -P MainPID systemd-nspawn@kube1)")
			h.Await(t, bootLimit, "systemctl is-active systemd-nspawn@kube1 && test $(machinectl show kube1 -p Leader --value) != "+before[1])
			if got := strings.TrimSpace(h.MustRun(t, restarts)); got != strconv.Itoa(count+1) {
				t.Errorf("%s automatic restarts, want one more than %d", got, count)
			}
			converge(t)
		})
		t.Run("stopped and started in a hurry", func(t *testing.T) {
			for range 3 {
				h.MustRun(t, "systemctl stop --no-block systemd-nspawn@kube1")
				converge(t)
				state(t, h)
			}
		})
		t.Run("other slot runs", func(t *testing.T) {
			h.MustRun(t, "systemctl stop systemd-nspawn@kube1; cp -a --reflink=auto "+tree+" /var/lib/machines/kube2; cp "+paths.Nspawn("kube1")+" "+paths.Nspawn("kube2")+
				"; sed -i '/bpffs/d' "+paths.Nspawn("kube2")+"; systemctl start systemd-nspawn@kube2")
			fails(t, "78", "kube2 runs", "systemctl stop systemd-nspawn@kube2.service")
			h.MustRun(t, "systemctl stop systemd-nspawn@kube2; rm -rf /var/lib/machines/kube2 "+paths.Nspawn("kube2"))
			converge(t)
		})
		t.Run("masked", func(t *testing.T) {
			h.MustRun(t, "systemctl stop systemd-nspawn@kube1; ln -s /dev/null /etc/systemd/system/systemd-nspawn@kube1.service; systemctl daemon-reload")
			fails(t, "78", "systemctl unmask systemd-nspawn@kube1.service")
			h.MustRun(t, "rm /etc/systemd/system/systemd-nspawn@kube1.service; systemctl daemon-reload")
			converge(t)
		})
		t.Run("machined masked while nothing runs", func(t *testing.T) {
			h.MustRun(t, "systemctl stop systemd-nspawn@kube1; systemctl mask --now systemd-machined.service")
			fails(t, "78", "systemctl unmask systemd-machined.service")
			h.MustRun(t, "systemctl unmask systemd-machined.service")
			converge(t)
		})
		t.Run("no built.json, no kubelet", func(t *testing.T) {
			h.MustRun(t, "mv "+tree+paths.Built+" /tmp/; systemctl -M kube1 stop kubelet")
			fails(t, "1", "kubelet.service", "condition")
			h.MustRun(t, "mv /tmp/built.json "+tree+paths.Built)
			converge(t)
		})
		t.Run("kubelet waits for the socket of containerd", func(t *testing.T) {
			h.MustRun(t, "systemctl -M kube1 stop kubelet; sed -i 's,^ExecStart=.*,ExecStart=/bin/sh -c \"sleep 3; exec socat UNIX-LISTEN:/run/containerd/containerd.sock\\,fork SYSTEM:true\",' "+tree+
				"/etc/systemd/system/containerd.service; touch /run/unbounded/restart/kube1.containerd")
			converge(t)
			times := strings.Fields(h.MustRun(t, "systemctl -M kube1 show -P ExecMainStartTimestampMonotonic containerd; systemctl -M kube1 show -P ExecMainStartTimestampMonotonic kubelet"))
			first, _ := strconv.Atoi(times[0])
			second, _ := strconv.Atoi(times[1])
			if second-first < 3_000_000 {
				t.Errorf("kubelet was started %d µs after containerd, whose socket came after 3 s", second-first)
			}
		})
		t.Run("a machine that hangs", func(t *testing.T) {
			const freeze = "/sys/fs/cgroup/machine.slice/systemd-nspawn@kube1.service/payload/cgroup.freeze"
			h.MustRun(t, "echo 1 >"+freeze)
			began := time.Now()
			fails(t, "1", "machine kube1", "does not answer", "journalctl -M kube1")
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("took %v to say so", took)
			}
			h.MustRun(t, "echo 0 >"+freeze)
			converge(t)
		})
		t.Run("no bus in the machine", func(t *testing.T) {
			h.MustRun(t, "systemd-run -q -M kube1 --wait /bin/systemctl stop dbus.socket dbus.service || true")
			fails(t, "1", "machine kube1", "bus", "journalctl -M kube1")
			h.MustRun(t, "systemctl restart systemd-nspawn@kube1")
			converge(t)
		})
		t.Run("host reboots", func(t *testing.T) {
			h.MustRun(t, "systemctl disable machines.target")
			converge(t)
			if got := h.MustRun(t, "systemctl is-enabled machines.target; cat /var/lib/unbounded/agent/before/machine.json"); !strings.HasPrefix(got, "enabled\n") || !strings.Contains(got, "multi-user.target.wants/machines.target") {
				t.Errorf("machines.target: %s", got)
			}
			h.Reboot(t)
			if got := h.Run(t, "systemctl is-active systemd-nspawn@kube1").Out; got != "inactive\n" {
				t.Errorf("a slot that no node is in is %q after a reboot, want inactive", got)
			}
			h.WriteFile(t, paths.Active("kube1"), host.File{})
			h.Reboot(t)
			h.Await(t, bootLimit, "systemctl -M kube1 is-active kubelet")
			h.MustRun(t, "systemctl start "+paths.AdmitUnit)
			before := state(t, h)
			converge(t)
			if after := state(t, h); after != before {
				t.Errorf("processes %q, want %q", after, before)
			}
		})
	})
}
