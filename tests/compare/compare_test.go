//go:build host

package compare

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

// changes are of each class and kind: what is done to the host, the beginnings of the lines that tell of it, and what
// undoes it.
var changes = []struct {
	name, do string
	want     []string
	undo     string
}{
	{"content", "echo x >>/etc/hosts", []string{"files /etc/hosts: was"}, "sed -i '$d' /etc/hosts"},
	{"mode", "chmod 600 /etc/passwd", []string{"files /etc/passwd: was"}, "chmod 644 /etc/passwd"},
	{"owner", "chown 1 /etc/fstab", []string{"files /etc/fstab: was"}, "chown 0 /etc/fstab"},
	{"target of a link", "ln -sfn /elsewhere /etc/mtab", []string{"files /etc/mtab: was"}, "ln -sfn ../proc/self/mounts /etc/mtab"},
	{"a folder without files", "mkdir /etc/docker", []string{"files /etc/docker: new: 0040755"}, "rmdir /etc/docker"},
	{"a file that is gone", "mv /etc/issue /etc/issue.away", []string{"files /etc/issue: gone", "files /etc/issue.away: new"}, "mv /etc/issue.away /etc/issue"},
	{"a file in /run", "mkdir /run/unbounded && touch /run/unbounded/x", []string{"files /run/unbounded/x: new"}, "rm -r /run/unbounded"},
	{"a file of a machine", "mkdir /var/lib/machines/kube1", []string{"files /var/lib/machines/kube1: new"}, "rmdir /var/lib/machines/kube1"},
	{"a registration with machined", "touch /run/systemd/machines/kube1", []string{"files /run/systemd/machines/kube1: new"}, "rm /run/systemd/machines/kube1"},
	{"enablement", "systemctl enable systemd-networkd.service", []string{"unit-files systemd-networkd.service: was disabled, is enabled", "files /etc/systemd/system/multi-user.target.wants/systemd-networkd.service: new"}, "systemctl disable systemd-networkd.service"},
	{"mask", "systemctl mask fstrim.timer", []string{"unit-files fstrim.timer: was"}, "systemctl unmask fstrim.timer && rm -f /etc/systemd/system/fstrim.timer"},
	{"a unit that runs, and its process", "systemd-run -q --unit=stranger sleep 1000", []string{"units stranger.service: new: loaded active", "processes stranger.service sleep: new"}, "systemctl stop stranger"},
	{"a unit that failed", "! systemctl start broken", []string{"units broken.service: new: loaded failed"}, "systemctl reset-failed broken"},
	{"a unit that stopped", "systemctl stop systemd-logind", []string{"units systemd-logind.service: gone"}, "systemctl start systemd-logind"},
	{"a job", "systemctl start --no-block slow", []string{"jobs ", "units slow.service: new: loaded activating"}, "systemctl stop slow; systemctl reset-failed slow || true"},
	{"kernel parameter", "sysctl -qw net.ipv4.conf.host0.rp_filter=2", []string{"sysctls net/ipv4/conf/host0/rp_filter: was 0, is 2"}, "sysctl -qw net.ipv4.conf.host0.rp_filter=0"},
	{"a table", "nft add table inet stranger", []string{"nft table inet stranger: new"}, "nft delete table inet stranger"},
	{"a rule", "nft add rule inet own input tcp dport 3 accept", []string{"nft rule inet own input #3: new"}, "nft flush chain inet own input; " + ownRules},
	{"rule by iptables", "iptables-nft -A FORWARD -m comment --comment x -j ACCEPT", []string{"nft rule ip filter FORWARD: new", "iptables-nft-save *filter rule FORWARD: new"}, "nft delete table ip filter"},
	{"rule by ip6tables", "ip6tables-nft -A FORWARD -m comment --comment x -j ACCEPT", []string{"ip6tables-nft-save *filter rule FORWARD: new"}, "nft delete table ip6 filter"},
	{"a link and its address", "ip link add stranger type bridge && ip addr add 198.51.100.1/24 dev stranger", []string{"links stranger: new", "addresses stranger: new", "sysctls net/ipv4/conf/stranger/forwarding: new"}, "ip link delete stranger"},
	{"state of a link", "ip link set host0 mtu 1400", []string{"links host0: was"}, "ip link set host0 mtu 1500"},
	{"rules", "ip -4 rule add pref 32765 table 252 && ip -6 rule add pref 32765 table 252", []string{"rules4 ", "rules6 "}, "ip -4 rule del pref 32765; ip -6 rule del pref 32765"},
	{"routes of any table", "ip -4 route add 203.0.113.0/24 dev host0 table 252 && ip -6 route add 2001:db8::/64 dev host0 table 51820", []string{"routes4 ", "routes6 "}, "ip -4 route flush table 252; ip -6 route flush table 51820"},
	{"a mount", "mount -t tmpfs stranger /mnt", []string{"mounts /mnt: new", "units mnt.mount: new"}, "umount /mnt"},
	{"options of a mount", "mount -o remount,nodev,size=5M /root", []string{"mounts /root: was"}, "mount -o remount,dev,size=4M /root"},
	{"a second mount", "mount -t tmpfs stranger /root", []string{"mounts /root #2: new"}, "umount /root"},
	{"machine-id", "cp /etc/machine-id /run/id && echo 0123456789abcdef0123456789abcdef >/etc/machine-id", []string{"machine-ids /etc/machine-id: was"}, "cat /run/id >/etc/machine-id && rm /run/id"},
}

const ownRules = `nft add rule inet own input tcp dport 1 counter accept; nft add rule inet own input tcp dport 2 accept`

// A change of each class is seen, and none is when it is undone. Nothing is seen of a host that idles or reboots.
func TestSees(t *testing.T) {
	h := host.Boot(t, host.Options{Bare: true, Overlay: map[string]host.File{
		"/etc/systemd/system/broken.service": {Content: "[Service]\nType=oneshot\nExecStart=/bin/false\n"},
		"/etc/systemd/system/slow.service":   {Content: "[Service]\nType=oneshot\nExecStart=/bin/sleep 1000\n"},
	}})
	h.MustRun(t, "mount -t tmpfs -o size=4M own /root; nft add table inet own; nft 'add chain inet own input { type filter hook input priority 0; }'; "+ownRules)
	before := Take(t, h)
	for _, change := range changes {
		h.MustRun(t, change.do)
	}
	attribute := filepath.Join(h.Root, "etc/environment")
	if err := unix.Setxattr(attribute, "user.stranger", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	seen := Diff(before, Take(t, h))
	for _, change := range changes {
		for _, want := range change.want {
			if !slices.ContainsFunc(seen, func(line string) bool { return strings.HasPrefix(line, want) }) {
				t.Errorf("%s: no line %q", change.name, want)
			}
		}
	}
	if !slices.ContainsFunc(seen, func(line string) bool { return strings.HasPrefix(line, "files /etc/environment: was") }) {
		t.Error("an extended attribute is not seen")
	}
	if t.Failed() {
		t.Logf("seen:\n%s", strings.Join(seen, "\n"))
	}

	for _, change := range slices.Backward(changes) {
		h.MustRun(t, change.undo)
	}
	if err := unix.Removexattr(attribute, "user.stranger"); err != nil {
		t.Fatal(err)
	}
	same(t, "when all is undone", before, Take(t, h))
	h.MustRun(t, "touch /etc/hosts; ping -c 1 -W 1 192.168.77.1 || true")
	same(t, "after a mere touch", before, Take(t, h))
}

// same demands that two looks see the same.
func same(t *testing.T, when string, before, after Snapshot) {
	t.Helper()
	if diff := Diff(before, after); len(diff) > 0 {
		t.Errorf("%s there is:\n%s", when, strings.Join(diff[:min(len(diff), 60)], "\n"))
	}
}

func TestReboot(t *testing.T) {
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) {
			h := host.Boot(t, host.Options{Release: release, Bare: true})
			began := time.Now()
			before := Take(t, h)
			t.Logf("%d objects in %v", size(before), time.Since(began).Round(time.Millisecond))
			for _, class := range slices.Sorted(maps.Keys(readers())) {
				if _, there := before[class]; !there {
					t.Errorf("nothing was looked at of %s", class)
				}
			}
			h.Reboot(t)
			same(t, "after a reboot", before, Take(t, h))
		})
	}
}

func size(s Snapshot) (n int) {
	for _, objects := range s {
		n += len(objects)
	}
	return n
}
