//go:build cluster || fault

package reset

import (
	"strings"
	"testing"

	"unbounded/internal/paths"
	"unbounded/tests/compare"
	"unbounded/tests/ground"
	"unbounded/tests/host"
)

// broken are nodes that something has happened to, or that something is in the way of: a reset does what it can, or
// stops, names what is in the way, and finishes when that is gone.
var broken = []struct {
	name   string
	sample bool
	harm   string
	fails  string   // the stage that has to fail; "" if the reset has to succeed
	says   []string // the cause, or else what is said in the journal of the reset
	undo   string   // before the second reset
	after  string   // back to the host before
}{
	{
		name: "machined is masked", harm: "systemctl mask --runtime systemd-machined && systemctl stop systemd-machined",
		after: "systemctl unmask --runtime systemd-machined",
	},
	{
		name: "machined is missing", sample: true,
		harm:  "mkdir /root/away && mv /usr/share/dbus-1/system-services/org.freedesktop.machine1.service /root/away/ && mv /lib/systemd/system/*machined.service /lib/systemd/system/*machine1.service /root/away/ && systemctl daemon-reload && systemctl stop systemd-machined; systemctl kill -s KILL systemd-machined || true; systemctl reload dbus",
		after: "cd /root/away && mv org.freedesktop.machine1.service /usr/share/dbus-1/system-services/ && mv *.service /lib/systemd/system/ && rmdir /root/away && systemctl daemon-reload && systemctl reload dbus && machinectl list", // it forgets what it was told of dead machines
	},
	{
		name: "machined fails", harm: unitHarm("systemd-machined.service", "[Service]\\nExecStart=\\nExecStart=/bin/false\\n") + " && systemctl stop systemd-machined",
		after: unitUndo("systemd-machined.service") + "; systemctl reset-failed systemd-machined || true; timeout 60 sh -c 'until machinectl list; do sleep 0.2; done'", // the bus is still waiting for the one that failed
	},
	{
		name: "netlink is refused", sample: true, fails: paths.ResetHostUnit, says: []string{"netfilter"},
		harm: unitHarm(paths.ResetHostUnit, "[Service]\\nRestrictAddressFamilies=\\nRestrictAddressFamilies=AF_UNIX\\n"), undo: unitUndo(paths.ResetHostUnit),
	},
	{
		name: "netlink is refused to the network", fails: paths.ResetNetworkUnit,
		harm: unitHarm(paths.ResetNetworkUnit, "[Service]\\nRestrictAddressFamilies=\\nRestrictAddressFamilies=AF_UNIX\\n"), undo: unitUndo(paths.ResetNetworkUnit),
	},
	{
		name:  "a file system of somebody in the tree",
		harm:  "mkdir -p /srv/data " + tree + "/var/lib/volume && echo precious >/srv/data/canary && mount --bind /srv/data " + tree + "/var/lib/volume",
		after: "grep -q precious /srv/data/canary && rm -r /srv/data",
	},
	{
		// The lower one is shared with the operator's folder, and unmounting what hides it would unmount it there too.
		name: "file systems one on another in the tree", fails: paths.ResetTreesUnit, says: []string{tree + "/var/lib/volume"},
		undo:  "umount " + tree + "/var/lib/volume && umount " + tree + "/var/lib/volume",
		harm:  "mkdir -p /srv/data " + tree + "/var/lib/volume && echo precious >/srv/data/canary && for i in 1 2; do mount --bind /srv/data " + tree + "/var/lib/volume; done; mount -t tmpfs -o ro x " + tree + "/opt",
		after: "grep -q precious /srv/data/canary && rm -r /srv/data",
	},
	{
		name: "a file of a mount in the tree is open", sample: true, fails: paths.ResetTreesUnit, says: []string{tree + "/var/lib/volume"},
		harm: "mkdir -p /srv/data " + tree + "/var/lib/volume && echo precious >/srv/data/canary && mount --bind /srv/data " + tree + "/var/lib/volume" +
			" && systemd-run -q --unit=opener sh -c 'exec 3<" + tree + "/var/lib/volume/canary; exec sleep 1000' && timeout 30 sh -c 'until test -e /proc/$(systemctl show -P MainPID opener)/fd/3; do sleep 0.1; done'",
		undo:  "systemctl stop opener",
		after: "grep -q precious /srv/data/canary && rm -r /srv/data",
	},
	{
		name: "the tree is a mount point", fails: paths.ResetTreesUnit, says: []string{tree, "umount -R"}, undo: "umount -R " + tree,
		harm:  "mkdir /srv/data && echo precious >/srv/data/canary && systemctl stop " + paths.MachineUnit("kube1") + " && mount --bind /srv/data " + tree,
		after: "grep -q precious /srv/data/canary && rm -r /srv/data",
	},
	{
		name: "/etc is read-only", sample: true, says: []string{"/etc", "Read-only file system"}, fails: paths.ResetMachinesUnit,
		harm: "mount --bind /etc /etc && mount -o remount,bind,ro /etc", undo: "umount --lazy /etc", // something of the host may have a file open there
	},
	{
		name: "half of the tree is gone",
		harm: "systemctl stop " + paths.MachineUnit("kube1") + " && rm -rf " + tree + "/usr " + tree + "/etc " + paths.Nspawn("kube1") + " && mkdir -p " + paths.Machines + "/.kube1.partial/x",
	},
	{
		name: "half of the tree is gone under a running machine",
		harm: "rm -rf --one-file-system " + tree + "/usr " + tree + "/opt || true",
	},
	{
		name: "files in the tree cannot be changed", harm: "chattr +i " + tree + "/etc/hostname " + tree + "/usr/bin && chattr +a " + tree + "/opt",
	},
	{
		name: "containerd is dead", harm: "systemctl -M kube1 kill -s KILL containerd",
	},
	{
		name: "containerd and kubelet are stopped", harm: "systemctl -M kube1 kill -s STOP containerd kubelet",
	},
	{
		name: "nspawn was killed", harm: "systemctl kill -s KILL --kill-who=main " + paths.MachineUnit("kube1"),
	},
	{
		name: "the machine's unit is masked", harm: "systemctl mask --runtime " + paths.MachineUnit("kube1"),
		after: "systemctl unmask --runtime " + paths.MachineUnit("kube1"),
	},
	{
		name:  "no nft, ip or machinectl on the host",
		harm:  "mkdir /root/away && mv $(command -v nft) $(command -v ip) $(command -v machinectl) /root/away/",
		after: "mv /root/away/nft /root/away/ip /usr/sbin/ && mv /root/away/machinectl /usr/bin/ && rmdir /root/away",
	},
	{
		name: "the record is cut off", sample: true, harm: "truncate -s 40 " + paths.Record, says: []string{paths.Record, "replaced"},
	},
	{name: "the record is empty", harm: ": >" + paths.Record, says: []string{paths.Record}},
	{name: "the record is a folder", harm: "rm " + paths.Record + " && mkdir " + paths.Record, says: []string{paths.Record}},
	{
		name: "the record is of a newer release", harm: `sed -i 's/"schemaVersion": 1/"schemaVersion": 99/' ` + paths.Record, says: []string{paths.Record, "99"},
	},
	{
		name: "the record is of another machine", harm: `sed -i 's/"machineID": "[0-9a-f]*/"machineID": "00000000000000000000000000000001/' ` + paths.Record,
	},
	{
		name: "there is no record", harm: "rm " + paths.Record, says: []string{"no install record"},
	},
	{name: "the configuration is gone", harm: "cp -p " + paths.Config + " /root/config && rm -r " + paths.ConfigDir, after: "mkdir -p -m 755 " + paths.ConfigDir + " && mv /root/config " + paths.Config},
}

// unitHarm is a shell line that puts lines into a unit; unitUndo takes them away.
func unitHarm(unit, lines string) string {
	return "mkdir -p /run/systemd/system/" + unit + ".d && printf '" + lines + "' >/run/systemd/system/" + unit + ".d/test.conf && systemctl daemon-reload"
}

func unitUndo(unit string) string {
	return "rm -r /run/systemd/system/" + unit + ".d && systemctl daemon-reload"
}

func TestBroken(t *testing.T) {
	for _, release := range []string{"bookworm", "trixie"} {
		if release == "trixie" && !full {
			continue
		}
		t.Run(release, func(t *testing.T) {
			g := boot(t, release)
			before := compare.Take(t, g.Host)
			for _, row := range broken {
				if !row.sample && !full {
					continue
				}
				t.Run(row.name, func(t *testing.T) {
					install(t, g)
					must(t, g, row.harm)
					since := now(t, g)
					if row.fails != "" {
						fails(t, g, row.fails, row.says...)
						refused(t, g, 78)
						must(t, g, row.undo)
						resets(t, g)
					} else {
						resets(t, g)
						said := g.MustRun(t, "journalctl -b -o cat --since @"+since+" -u 'unbounded-reset-*'")
						for _, want := range row.says {
							if !strings.Contains(said, want) {
								t.Errorf("%q was not said:\n%s", want, said)
							}
						}
					}
					if row.after != "" {
						must(t, g, row.after)
					}
					same(t, g, "after the reset", before)
				})
				if t.Failed() {
					cleanUp(t, g)
				}
			}
		})
	}
}

// cleanUp gives the next row a host, whatever the last one left; what cannot be had fails it.
func cleanUp(t *testing.T, g *ground.Ground) {
	t.Helper()
	for _, row := range broken {
		g.Run(t, row.undo)
	}
	g.Run(t, reset)
}

// A machine that will not end is given its time, then killed by PID 1; until nothing of it runs its tree is as it
// was, although machined cannot be asked.
func TestMachineWillNotEnd(t *testing.T) {
	g := boot(t, "trixie")
	before := compare.Take(t, g.Host)
	install(t, g)
	const unit = "systemd-nspawn@kube1.service"
	g.MustRun(t, "systemctl mask --runtime systemd-machined && systemctl stop systemd-machined")
	g.MustRun(t, unitHarm(unit, `[Service]\nTimeoutStopSec=15s\n`))
	// What the machine's PID 1 would do with the signal: nothing.
	g.MustRun(t, "kill -STOP $(pgrep -P $(systemctl show -P MainPID "+unit+"))")
	files := g.Tree(t, host.TreeOptions{Paths: []string{tree + "/etc", tree + "/usr/local"}}).Hash()
	g.MustRun(t, "systemctl start --no-block "+paths.ResetTarget)
	g.Await(t, waitLimit, "test $(systemctl show -P ActiveState "+unit+") = deactivating")
	for range 5 {
		hash := g.Tree(t, host.TreeOptions{Paths: []string{tree + "/etc", tree + "/usr/local"}}).Hash()
		populated := g.Run(t, "systemctl show -P ActiveState "+unit+" | grep -q deactivating").Code == 0
		if populated && hash != files {
			t.Fatal("the tree was touched while the machine ran")
		}
	}
	idle(t, g)
	over(t, g)
	g.MustRun(t, "systemctl unmask --runtime systemd-machined")
	g.Run(t, unitUndo(unit))
	same(t, g, "after the reset", before)
}
