//go:build host

package install

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/paths"
	"unbounded/tests/host"
	"unbounded/tests/serve"
)

const (
	first  = "release-one"
	second = "release-two"
)

// unchanged holds what do does to change no file.
func (s scene) unchanged(t *testing.T, what string, do func()) {
	t.Helper()
	before := s.files(t)
	do()
	if diff := cmp.Diff(before, s.files(t), cmp.FilterPath(isState, cmp.Ignore())); diff != "" {
		t.Errorf("%s changed the host:\n%s", what, diff)
	}
}

// isState: the folder in which the script works, not what is in it.
func isState(path cmp.Path) bool {
	index, ok := path.Last().(cmp.MapIndex)
	return ok && index.Key().String() == "/var/lib/unbounded"
}

// Three runs: the first installs and starts, the others find everything in place.
func TestThrice(t *testing.T) {
	r := pack(t, "one.tar.gz", small(first))
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) {
			// A /tmp on which nothing can run is none of its business.
			s := bare(t, host.Options{Release: release}, r)
			s.MustRun(t, "mount -t tmpfs -o noexec tmpfs /tmp")
			s.install(t, line(r, ""), 0, "nobody's", "this host is a node")
			if got := s.runs(t, "current", first); got != first {
				t.Errorf("current is %q", got)
			}
			s.MustRun(t, "test -e "+paths.Complete+" && systemctl is-enabled --quiet "+paths.BootUnit)
			if got := s.MustRun(t, "stat -c '%a %U' "+paths.Config); got != "600 root\n" {
				t.Errorf("the configuration has %s", got)
			}
			for _, run := range []string{"", "--no-wait"} {
				s.unchanged(t, "another run", func() { s.install(t, line(r, run), 0, "phase complete", "in place already") })
			}
			s.install(t, strings.Replace(line(r, ""), "config.json", "other.json", 1), 78, `"m1"`, `"m2"`, "nothing was changed")
		})
	}
}

// Refusals change nothing, and leave nothing.
func TestRefused(t *testing.T) {
	r := pack(t, "one.tar.gz", small(first))
	foreign, leading, empty := files("foreign.tar.gz", "etc/passwd"), files("leading.tar.gz", "opt/unbounded/../../etc/passwd"), files("empty.tar.gz", "opt/unbounded/doc/x")
	alien := pack(t, "alien.tar.gz", func(string, []byte) []byte { return []byte("\x7fELF of another world") })
	s := bare(t, host.Options{}, r, foreign, leading, empty, alien, seal("text.tar.gz", []byte("Not Found")))
	s.WriteFile(t, "/root/hurry/sleep", host.File{Content: "#!/bin/sh\n", Mode: 0o755})
	for _, test := range []struct {
		name, line string
		before     string
		after      string
		fault      serve.Fault
		status     int
		says       []string
	}{
		{name: "no hash", line: "sh " + script + " --url http://" + address + "/one.tar.gz", status: 64, says: []string{"--sha256 is missing"}},
		{name: "no URL", line: "sh " + script + " --sha256 " + r.sha256, status: 64, says: []string{"--url is missing"}},
		{name: "another prefix", line: line(r, "--prefix /srv"), status: 64, says: []string{"make install PREFIX=DIR"}},
		{name: "not root", line: "setpriv --reuid 1000 " + strings.Replace(line(r, ""), script, "-s --", 1) + "<" + script, status: 77, says: []string{"run as root"}},
		{name: "wrong hash", line: strings.Replace(line(r, ""), r.sha256, strings.Repeat("0", 64), 1), status: 78, says: []string{r.sha256, strings.Repeat("0", 64), "nothing was changed"}},
		{name: "corrupt", line: line(r, ""), fault: serve.Corrupt(1000), status: 78, says: []string{"has SHA-256", "nothing was changed"}},
		{name: "truncated each time", line: "PATH=/root/hurry:$PATH " + line(r, ""), fault: serve.Cut(1000), status: 1, says: []string{"download http://" + address + "/one.tar.gz: curl", "nothing was changed"}},
		{name: "not a tar", line: line(seal("text.tar.gz", []byte("Not Found")), ""), status: 78, says: []string{"not a tar", "nothing was changed"}},
		{name: "a file of the host's", line: line(foreign, ""), status: 78, says: []string{"it has etc/passwd in it", "nothing was changed"}},
		{name: "a way out", line: line(leading, ""), status: 78, says: []string{"opt/unbounded/../../etc/passwd leads out of it", "nothing was changed"}},
		{name: "no programs", line: line(empty, ""), status: 78, says: []string{"is not a release", "/opt/unbounded/slots/blue", "nothing was changed"}},
		{name: "no configuration", line: strings.Replace(line(r, ""), "/root/config.json", "/root/none.json", 1), status: 78, says: []string{"/root/none.json", "nothing was changed"}},
		{
			name: "of somebody else", line: line(r, ""), before: "mkdir -p /var/lib/machines/kube1/etc", after: "rm -r /var/lib/machines/kube1",
			status: 78, says: []string{"existing deployment", "/var/lib/machines/kube1", "nothing was changed"},
		},
		{
			name: "noexec", line: line(r, ""), before: "mount --bind /var/lib/unbounded /var/lib/unbounded && mount -o remount,bind,noexec /var/lib/unbounded",
			after: "umount /var/lib/unbounded", status: 78, says: []string{"/var/lib/unbounded", "noexec"},
		},
		{
			name: "the link is a folder", line: line(r, ""), before: "mkdir -p /opt/unbounded/current/x", after: "rm -r /opt/unbounded",
			status: 78, says: []string{"/opt/unbounded/current is not a symbolic link", "nothing was changed"},
		},
		{
			name: "noexec below the prefix", line: line(r, ""), before: "mount -t tmpfs -o noexec tmpfs /opt", after: "umount /opt",
			status: 78, says: []string{"programs cannot run below /opt/unbounded", "noexec", "nothing was changed"},
		},
		{
			name: "no room for the download", line: line(r, ""), before: "mount -t tmpfs -o size=16k tmpfs /var/lib/unbounded",
			after: "umount /var/lib/unbounded", status: 1, says: []string{"/var/lib/unbounded is full", "nothing was changed"},
		},
		{
			name: "a slot is a file", line: line(r, ""), before: "mkdir -p /opt/unbounded/slots && touch /opt/unbounded/slots/blue",
			after: "rm -r /opt/unbounded", status: 78, says: []string{"/opt/unbounded/slots/blue is no folder", "nothing was changed"},
		},
		{
			name: "below another prefix", line: line(r, ""), before: "printf '[Service]\\nExecStart=/srv/x/current/unbounded-boot\\n' >/etc/systemd/system/unbounded-boot.service",
			after: "rm /etc/systemd/system/unbounded-boot.service", status: 78, says: []string{"/srv/x/current/unboundedctl uninstall", "nothing was changed"},
		},
		{
			name: "held at boot", line: line(r, "--no-wait"), before: "mkdir " + filepath.Dir(paths.HeldAtBoot) + " && touch " + paths.HeldAtBoot,
			after: "rm -r " + filepath.Dir(paths.HeldAtBoot), status: 78, says: []string{paths.HeldAtBoot, "remove that file", "nothing was changed"},
		},
		{
			name: "of another architecture", line: line(alien, ""), status: 78, says: []string{"do not run here", "nothing was changed"},
		},
		{
			name: "no tar", line: line(r, ""), before: "mv /bin/tar /bin/tar.away", after: "mv /bin/tar.away /bin/tar",
			status: 78, says: []string{"lacks", "install tar"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.MustRun(t, "true;"+test.before)
			if test.fault != nil {
				s.server.Fail("/one.tar.gz", -1, test.fault)
			}
			s.unchanged(t, "a refusal", func() { s.install(t, test.line, test.status, test.says...) })
			s.server.Heal()
			s.MustRun(t, "true;"+test.after)
		})
	}
	t.Run("no state folder", func(t *testing.T) {
		s.MustRun(t, "umount /var/lib/unbounded && rmdir /var/lib/unbounded")
		s.install(t, strings.Replace(line(r, ""), r.sha256, strings.Repeat("0", 64), 1), 78)
		if s.Exists(t, "/var/lib/unbounded") {
			t.Error("a refusal left /var/lib/unbounded")
		}
	})
}

// A download that is cut off goes on where it was.
func TestResume(t *testing.T) {
	r := pack(t, "one.tar.gz", small(first))
	s := bare(t, host.Options{}, r)
	s.server.Fail("/one.tar.gz", 1, serve.Cut(len(r.data)/2))
	s.install(t, line(r, "--no-start"), 0)
	if all := s.server.Requests(); len(all) != 2 || all[1].Range == "" {
		t.Errorf("requests: %+v, want two, the second for the rest", all)
	}
	s.MustRun(t, "rm -r /opt/unbounded")
	s.server.Fail("/one.tar.gz", 1, serve.Cut(len(r.data)/2))
	s.server.Fail("/one.tar.gz", -1, serve.Whole())
	s.install(t, line(r, "--no-start"), 0)
}

// What does not resolve, or cannot run, is seeded again; what is not ours is kept.
func TestSeed(t *testing.T) {
	r := pack(t, "one.tar.gz", small(first))
	s := bare(t, host.Options{}, r)
	for _, test := range []struct{ name, before string }{
		{"dangling", "mkdir -p /opt/unbounded && ln -s slots/red /opt/unbounded/current"},
		{"to a file", "mkdir -p /opt/unbounded && ln -s /etc/passwd /opt/unbounded/current"},
		{"not executable", "mkdir -p /opt/unbounded/slots/blue && echo >/opt/unbounded/slots/blue/unbounded-admission && ln -s slots/blue /opt/unbounded/current"},
		{"read-only /usr/local", "mount --bind /usr/local /usr/local && mount -o remount,bind,ro /usr/local"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.MustRun(t, test.before)
			said := s.install(t, line(r, "--no-start"), 0)
			for _, link := range []string{"current", "last-good"} {
				if got := s.runs(t, link, first); got != first {
					t.Errorf("%s is %q", link, got)
				}
			}
			if got := s.MustRun(t, "readlink /opt/unbounded/current"); got != "slots/blue\n" {
				t.Errorf("current leads to %s", got)
			}
			if ro := strings.HasPrefix(test.name, "read-only"); ro != strings.Contains(said, "no message catalog") {
				t.Errorf("of the catalog it says:\n%s", said)
			}
			s.unchanged(t, "another run", func() { s.install(t, line(r, "--no-start"), 0) })
			s.wipe(t)
		})
	}
}

// A switch that fails is told, and the next run makes it.
func TestSwitchFails(t *testing.T) {
	one, two := pack(t, "one.tar.gz", small(first)), pack(t, "two.tar.gz", small(second))
	s := bare(t, host.Options{}, one, two)
	s.WriteFile(t, "/root/fails/ln", host.File{Content: "#!/bin/sh\nexit 1\n", Mode: 0o755})
	s.install(t, "PATH=/root/fails:$PATH "+line(one, "--no-start"), 1, "/opt/unbounded/current cannot be written")
	s.install(t, line(one, "--no-start"), 0)
	units := s.MustRun(t, "sha256sum /etc/systemd/system/unbounded*")
	s.install(t, "PATH=/root/fails:$PATH "+line(two, "--no-start"), 1, "/opt/unbounded/current cannot be written")
	if now := s.MustRun(t, "sha256sum /etc/systemd/system/unbounded*"); now != units || s.runs(t, "current", first) != first {
		t.Error("units of the new release beside programs of the old one")
	}
	s.install(t, line(two, "--no-start"), 0)
	if got := s.runs(t, "current", second); got != second {
		t.Errorf("current is %q", got)
	}
}

// Slots may lie elsewhere: the one in use is not written to there either. What an operator has masked stays masked, and a
// release that lost a program is none to go back to.
func TestOperatorsHand(t *testing.T) {
	one, two, three := pack(t, "one.tar.gz", small(first)), pack(t, "two.tar.gz", small(second)), pack(t, "three.tar.gz", small("release-three"))
	s := bare(t, host.Options{}, one, two, three)
	s.install(t, line(one, "--no-start"), 0)
	s.MustRun(t, "mv /opt/unbounded/slots /opt/big && ln -s /opt/big /opt/unbounded/slots && systemctl disable --quiet unbounded-boot.service && "+
		"ln -sf /dev/null /etc/systemd/system/unbounded-boot.service && systemctl daemon-reload")
	was := s.MustRun(t, "sha256sum /opt/big/blue/*")
	s.install(t, line(two, "--no-start"), 0, "unbounded-boot.service is masked, and left so")
	if now := s.MustRun(t, "sha256sum /opt/big/blue/*"); now != was {
		t.Error("the slot in use was written to")
	}
	if got := s.runs(t, "current", second); got != second {
		t.Errorf("current is %q", got)
	}
	if got := s.MustRun(t, "readlink /etc/systemd/system/unbounded-boot.service"); got != "/dev/null\n" {
		t.Errorf("the mask is %q", got)
	}
	s.MustRun(t, "rm /opt/unbounded/current/unbounded-verify")
	s.install(t, line(three, "--no-start"), 0)
	if got := s.runs(t, "last-good", first, second, "release-three"); got == second {
		t.Errorf("last-good is the release that lost a program")
	}
}

// wipe takes an installation off that was not started.
func (s scene) wipe(t *testing.T) {
	t.Helper()
	s.MustRun(t, `rm -rf /opt/unbounded /etc/unbounded /etc/systemd/system/unbounded* /etc/systemd/system/*/unbounded*
		umount /usr/local 2>/dev/null; rm -rf /usr/local/lib/systemd; systemctl daemon-reload`)
}

// Another release goes into the other slot; the one before stays within reach. All of it can be uninstalled.
func TestUpgrade(t *testing.T) {
	one, two, three := pack(t, "one.tar.gz", small(first)), pack(t, "two.tar.gz", small(second)), pack(t, "three.tar.gz", small("release-three"))
	s := bare(t, host.Options{Release: "trixie"}, one, two, three)
	clean := s.files(t)
	s.install(t, line(one, ""), 0)
	was := s.MustRun(t, "sha256sum /opt/unbounded/slots/blue/*")
	s.unchanged(t, "a refused upgrade", func() {
		s.install(t, strings.Replace(line(two, ""), "config.json", "other.json", 1), 78, `"m2"`, "nothing was changed")
	})
	s.install(t, line(two, ""), 0, "phase complete", "is a node")
	if got := s.MustRun(t, "sha256sum /opt/unbounded/slots/blue/*"); got != was {
		t.Errorf("the slot that was live has changed:\n%s", got)
	}
	all := []string{first, second, "release-three"}
	if now, before := s.runs(t, "current", all...), s.runs(t, "last-good", all...); now != second || before != first {
		t.Errorf("current is %q, last-good %q", now, before)
	}
	s.MustRun(t, "grep -q "+second+" /etc/systemd/system/unbounded-network.service")
	if s.MustRun(t, "systemctl show --property=NeedDaemonReload 'unbounded-*' | grep yes || true") != "" {
		t.Error("systemd has not read the new units")
	}
	s.unchanged(t, "another run", func() { s.install(t, line(two, ""), 0) })
	s.install(t, line(three, "--no-start"), 0)
	if now, before := s.runs(t, "current", all...), s.runs(t, "last-good", all...); now != "release-three" || before != second {
		t.Errorf("current is %q, last-good %q", now, before)
	}
	s.MustRun(t, "rm -r /var/lib/unbounded/* && /opt/unbounded/current/unboundedctl uninstall --yes")
	for path := range s.files(t) {
		if _, had := clean[path]; !had && !strings.HasPrefix(path, "/var/lib/unbounded") {
			t.Errorf("uninstall left %s", path)
		}
	}
}

// A bootstrap that runs is not to find other programs half way.
func TestBusy(t *testing.T) {
	one, two := pack(t, "one.tar.gz", small(first)), pack(t, "two.tar.gz", small(second))
	s := bare(t, host.Options{}, one, two)
	s.install(t, line(one, "--no-start"), 0)
	s.WriteFile(t, "/etc/systemd/system/unbounded-preflight.service.d/slow.conf", host.File{Content: "[Service]\nExecStartPre=/bin/sleep infinity\n"})
	s.MustRun(t, "systemctl daemon-reload && systemctl start --no-block "+paths.Target)
	s.Await(t, time.Minute, "pgrep -x sleep")
	s.install(t, line(two, ""), 75, "while a bootstrap or a reset runs", "nothing was changed")
	s.install(t, line(one, "--no-wait"), 0, "in place already")
	s.MustRun(t, "systemctl stop 'unbounded-*'")
	s.MustRun(t, "systemd-run --quiet flock "+paths.Lock+" sleep infinity")
	s.Await(t, time.Minute, "! flock -n "+paths.Lock+" true")
	s.install(t, line(one, ""), 75, "is held by")
}

// Two at once: the second waits for the first.
func TestTwo(t *testing.T) {
	r := pack(t, "one.tar.gz", small(first))
	s := bare(t, host.Options{}, r)
	s.server.Fail("/one.tar.gz", 1, serve.Slow(len(r.data)/20, 100*time.Millisecond))
	one := make(chan host.Result)
	go func() { one <- s.Run(t, line(r, "--no-start")) }()
	s.Await(t, time.Minute, "ls /var/lib/unbounded/install.*/tar")
	s.install(t, line(r, "--no-start"), 0, "another installation is at work", "in place already")
	if got := <-one; got.Code != 0 {
		t.Errorf("the first = %d\n%s%s", got.Code, got.Out, got.Err)
	}
}

// cutter counts the commands that the script runs, and kills it with all its children before the one whose number is in `at`.
const cutter = `#!/bin/sh
n=$(($(/bin/cat /root/cut/count) + 1))
echo $n >/root/cut/count
[ $n -ne "$(/bin/cat /root/cut/at)" ] || kill -9 0
exec "/usr/bin/${0##*/}" "$@"
`

// Cut off at ten moments, of an installation and of an upgrade: what is live is whole, and the next run finishes.
func TestCut(t *testing.T) {
	one, two := pack(t, "one.tar.gz", small(first)), pack(t, "two.tar.gz", small(second))
	s := bare(t, host.Options{}, one, two)
	s.WriteFile(t, "/root/cut/bin/cutter", host.File{Content: cutter, Mode: 0o755})
	s.MustRun(t, "cd /root/cut/bin && for c in chmod cut curl id install ln mkdir mktemp mv readlink rm rmdir sed sha256sum sort stat sync systemctl tar; do ln -s cutter $c; done")
	cut := func(r archive, at int) host.Result {
		return s.Run(t, fmt.Sprintf("echo 0 >/root/cut/count; echo %d >/root/cut/at; PATH=/root/cut/bin:$PATH setsid -w ", at)+line(r, "--no-start"))
	}
	for _, test := range []struct {
		name         string
		before, then archive
		want         string
	}{{"install", archive{}, one, first}, {"upgrade", one, two, second}} {
		t.Run(test.name, func(t *testing.T) {
			begin := func() {
				s.wipe(t)
				if test.before.name != "" {
					s.install(t, line(test.before, "--no-start"), 0)
				}
			}
			begin()
			if got := cut(test.then, 0); got.Code != 0 {
				t.Fatalf("uncut: %+v", got)
			}
			var total int
			if _, err := fmt.Sscan(s.ReadFile(t, "/root/cut/count"), &total); err != nil {
				t.Fatal(err)
			}
			want := s.Tree(t, host.TreeOptions{Paths: []string{"/opt", "/etc"}, Running: true, NoTimes: true})
			for moment := range 10 {
				begin()
				at := (2*moment + 1) * total / 20
				if got := cut(test.then, at); got.Code == 0 {
					t.Fatalf("cut before command %d of %d: it came to its end", at, total)
				}
				live := s.runs(t, "current", first, second)
				if test.before.name != "" && live == "" {
					t.Errorf("cut before command %d of %d: nothing is live", at, total)
				}
				s.install(t, line(test.then, "--no-start"), 0)
				got := s.Tree(t, host.TreeOptions{Paths: []string{"/opt", "/etc"}, Running: true, NoTimes: true})
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("cut before command %d of %d, then run again:\n%s", at, total, diff)
				}
				t.Logf("cut before command %d of %d: current was %q", at, total, live)
			}
		})
	}
}

// A signal ends it in order: nothing is left of it.
func TestStopped(t *testing.T) {
	r := pack(t, "one.tar.gz", small(first))
	s := bare(t, host.Options{}, r)
	s.server.Fail("/one.tar.gz", -1, serve.Hang())
	for signal, status := range map[string]int{"TERM": 143, "INT": 130, "HUP": 129} {
		s.unchanged(t, signal, func() { s.install(t, "timeout --preserve-status --signal "+signal+" 1 "+line(r, ""), status) })
	}
}
