//go:build cluster

package attack

import (
	"strings"
	"testing"

	"unbounded/internal/paths"
	"unbounded/tests/compare"
	"unbounded/tests/ground"
)

// A reset among rubbish, links and foreign files ends well or names what is in the way and ends well the next time. It
// never follows a link, and gives the host back.
func TestResetAmongRubbish(t *testing.T) {
	const before, record = paths.Before, paths.Record
	const root = "/var/lib/unbounded"
	const theirs = "mkdir -p /srv/theirs && echo x >/srv/theirs/x && "
	const kept = "grep -q x /srv/theirs/x && rm -r /srv/theirs"
	g := ground.Boot(t, ground.Options{})
	first := compare.Take(t, g.Host)
	for _, row := range []struct {
		name, harm string
		node       bool   // with the tree of a machine
		says       string // of the first reset, which has to fail; "" if it must not
		undo       string // before the second
		after      string // back to the host before
	}{
		{name: "nothing was ever installed", harm: "systemctl start " + paths.ResetTarget},
		{name: "before-image cut off", harm: "cp -p " + before + "/kernel.json /root/ && truncate -s 40 " + before + "/kernel.json", says: "kernel.json", undo: "mv /root/kernel.json " + before},
		{name: "before-image is a pipe", harm: "cp -p " + before + "/network.json /root/ && rm " + before + "/network.json && mkfifo " + before + "/network.json", says: "network.json is not a regular file; move it away", undo: "mv /root/network.json " + before},
		{name: "before-image of another release", harm: "cp -p " + before + "/conflicts.json /root/ && echo '{\"version\":9}' >" + before + "/conflicts.json", says: "has version 9", undo: "mv /root/conflicts.json " + before},
		{name: "record is a pipe", harm: "rm " + record + " && mkfifo " + record},
		{name: "record is a link", harm: "mv " + record + " /srv/ && ln -s /srv/install-state.json " + record, after: "rm /srv/install-state.json"},
		{
			name: "no room for the record", harm: "rm -rf " + paths.Content + " && cp -a " + root + " /root/kept && mount -t tmpfs -o size=256k none " + root + " && cp -a /root/kept/. " + root + "/ && mkdir " + paths.Content + " && ! dd if=/dev/zero of=" + paths.Content + "/x bs=4k 2>/dev/null",
			says: "make room", undo: "rm -r " + paths.Content, after: "umount " + root + " && rm -r /root/kept " + root + "/*",
		},
		{name: "marks are a link", harm: theirs + "rm -rf " + paths.Restart + " && ln -s /srv/theirs " + paths.Restart, after: kept},
		{name: "content store is a link", node: true, harm: theirs + "rm -r " + paths.Content + " && ln -s /srv/theirs " + paths.Content, after: kept},
		{name: "tree is a link", node: true, harm: theirs + "mv " + paths.Tree("kube1") + " /srv/theirs/t && ln -s /srv/theirs/t " + paths.Tree("kube1") + " && ln -s /srv/theirs " + paths.Partial("kube2"), after: "test -e /srv/theirs/t/etc/hostname && " + kept},
	} {
		t.Run(row.name, func(t *testing.T) {
			units := []string{paths.NetworkUnit, paths.ConflictsUnit, paths.KernelUnit}
			if row.node {
				units = append(units, paths.NodeUnit("kube1"))
			}
			g.MustRun(t, "systemctl start "+strings.Join(units, " "))
			g.MustRun(t, row.harm)
			result := g.Run(t, paths.DefaultRoot+"/current/unboundedctl reset --yes")
			t.Logf("%d in %v: %s", result.Code, result.Took, result.Err)
			if (result.Code != 0) != (row.says != "") || !strings.Contains(result.Err, row.says) {
				t.Errorf("reset = %d, want %q\n%s%s", result.Code, row.says, result.Out, result.Err)
			}
			if result.Code != 0 {
				g.MustRun(t, row.undo)
				g.MustRun(t, paths.DefaultRoot+"/current/unboundedctl reset --yes")
			}
			if row.after != "" {
				g.MustRun(t, row.after)
			}
			if diff := compare.Diff(first, compare.Take(t, g.Host)); len(diff) > 0 {
				t.Errorf("the host is not what it was:\n%s", strings.Join(diff, "\n"))
			}
			secret := g.Cluster.Token[strings.Index(g.Cluster.Token, ".")+1:]
			for _, found := range strings.Fields(g.Run(t, "grep -rlaF --devices=skip "+secret+" /etc /var /run /opt /root /tmp /srv 2>/dev/null; journalctl -b -o export | grep -q "+secret+" && echo journal").Out) {
				if found != paths.Config {
					t.Errorf("the token is in %s", found)
				}
			}
		})
	}
}
