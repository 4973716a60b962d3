//go:build cluster

package image_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
	"unbounded/tests/image"
)

// readyLimit bounds what a first boot takes until the node is Ready.
const readyLimit = 4 * time.Minute

// prepare makes an image-based host with a cluster, whose first boot a document has prepared. The host has its
// configuration from the document, or, with words that say so, as a credential from the machine that it is a guest of.
func prepare(t *testing.T, options host.Options, config map[string]any, words ...string) *ground.Ground {
	t.Helper()
	credential := filepath.Join(t.TempDir(), "config")
	byCredential := slices.Contains(words, "--config-credential")
	if byCredential {
		options.Args = append(options.Args, "--load-credential="+paths.Credential+":"+credential)
	}
	g := ground.Boot(t, ground.Options{Host: image.Options(options)})
	g.WriteFile(t, ground.ConfigPath, host.File{Absent: true}) // the document brings it
	encoded, err := json.Marshal(g.Config(t, config))
	if err != nil {
		t.Fatal(err)
	}
	if byCredential {
		if err := os.WriteFile(credential, encoded, 0o600); err != nil {
			t.Fatal(err)
		}
		encoded = nil
	}
	image.Serve(t, g.Host)
	image.Apply(t, g.Host, image.Document(t, encoded, words...))
	return g
}

// late is a disk for the state that comes when others have long been served.
func late() map[string]host.File {
	return map[string]host.File{
		"/var/late":  {Folder: true},
		"/etc/fstab": {Content: "/var/late /var/lib/unbounded none bind,nofail,x-systemd.requires=late.service 0 0\n"},
		paths.SystemdDir + "/late.service": {
			Content: "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sleep 3\n",
		},
	}
}

// A host comes up for the first time and becomes a node; nobody touches it. Then it is rebooted,
// and nothing of ours runs any more.
func TestFirstBoot(t *testing.T) {
	tests := []struct {
		name, release string
		id            host.File
		files         map[string]host.File
		prefix        string
		words         []string
	}{
		{
			name: "no machine-id, configuration by credential", release: "trixie", id: host.File{Absent: true},
			words: []string{"--config-credential", paths.Credential},
		},
		{name: "empty machine-id, state on a late disk", release: "bookworm", files: late(), words: []string{"--plain"}},
		{
			name: "valid machine-id, another prefix", release: "bookworm", prefix: "/var/opt/unbounded",
			words: []string{"--prefix", "/var/opt/unbounded"},
			id:    host.File{Content: "00112233445566778899aabbccddeeff\n", Mode: 0o444},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			overlay := map[string]host.File{paths.MachineID: test.id}
			maps.Copy(overlay, test.files)
			g := prepare(t, host.Options{Release: test.release, Overlay: overlay}, nil, test.words...)
			if test.files != nil {
				// The ground has mounted something there already.
				umount := g.Outside(t.Context(), "umount", filepath.Join(g.Dir, "root/var/lib/unbounded"))
				if out, err := umount.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			g.Start(t)
			g.Await(t, time.Minute, "systemctl is-active multi-user.target")
			// Not held up: ours has only begun.
			g.MustRun(t, "systemctl is-active "+paths.BootUnit+" && test ! -e "+paths.Complete)
			isImage(t, g)
			if got := follow(t, g, "host"); !strings.Contains(got, paths.AdmitUnit) && !strings.Contains(got, "attempt 1") {
				t.Errorf("what the guide says to watch shows nothing of the attempt:\n%s", got)
			}
			g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
			isReachable(t, g)
			g.Await(t, readyLimit, "test -e "+paths.Complete+" && ! systemctl is-active "+paths.BootUnit)
			g.PowerOff(t)
			g.Cluster.DoubtReady(t, ground.NodeName)
			g.On(t)
			g.Cluster.AwaitReady(t, ground.NodeName, readyLimit)
			isQuiet(t, g)
			isReachable(t, g)
			if test.files != nil {
				isOnlyLate(t, g)
			}
			if got := follow(t, g, "complete"); !strings.Contains(got, "ConditionResult=no") || !strings.Contains(got, "kube1") {
				t.Errorf("what the guide says of a later boot is not so:\n%s", got)
			}
			if test.prefix != "" {
				isFound(t, g, test.prefix)
				return
			}
			follow(t, g, "reset")
			g.MustRun(t, "! ls -d /opt/unbounded /etc/unbounded /etc/systemd/system/unbounded-* /var/lib/unbounded/agent /var/lib/machines/kube1")
		})
	}
}

// isImage holds the host to what an image-based host is.
func isImage(t *testing.T, g *ground.Ground) {
	t.Helper()
	for _, folder := range []string{"/usr", "/usr/local/bin"} {
		if result := g.Run(t, "touch "+folder+"/file"); !strings.Contains(result.Err, "Read-only file system") {
			t.Fatalf("%s can be written: %s", folder, result.Err)
		}
	}
	g.MustRun(t, "! command -v apt-get dpkg dnf && findmnt -no OPTIONS /tmp | grep -w noexec")
}

// isReachable demands that the distribution's packet filter does not keep the API server from kubelet.
func isReachable(t *testing.T, g *ground.Ground) {
	t.Helper()
	conn, err := g.Dial(t.Context(), "tcp", host.InsideIP+":10250")
	if err != nil {
		t.Errorf("kubelet: %v\n%s", err, g.Run(t, "systemctl status --no-pager iptables.service; iptables -S INPUT").Out)
		return
	}
	_ = conn.Close()
}

// isQuiet demands that in this boot no process of ours has run but the one that the machine's own unit asks which
// devices and resolvers the host has now, and that a condition is the reason.
func isQuiet(t *testing.T, g *ground.Ground) {
	t.Helper()
	if got := property(t, g.Host, paths.BootUnit, "ConditionResult"); got != "no" {
		t.Errorf("ConditionResult of %s = %s, want no", paths.BootUnit, got)
	}
	g.MustRun(t, "journalctl --sync")
	for _, line := range host.Lines(g.MustRun(t, "journalctl -b -o json")) {
		var entry struct {
			Program any    `json:"_EXE"`
			Name    any    `json:"_COMM"`
			Unit    any    `json:"UNIT"` // that PID 1 tells of
			Of      string `json:"_SYSTEMD_UNIT"`
			Message any    `json:"MESSAGE"`
			Kind    string `json:"MESSAGE_ID"`
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		const starting = "7d4958e842da4a758f6c1cdc7b36dcc5" // sd-messages: SD_MESSAGE_UNIT_STARTING
		program, _ := entry.Program.(string)
		name, _ := entry.Name.(string)
		unit, _ := entry.Unit.(string)
		if entry.Of == "systemd-nspawn@kube1.service" {
			continue
		}
		if strings.HasPrefix(filepath.Base(program), "unbounded") || strings.HasPrefix(name, "unbounded") ||
			entry.Kind == starting && strings.HasPrefix(unit, "unbounded-") {
			t.Errorf("%s%s ran: %v", name, unit, entry.Message)
		}
	}
}

// isOnlyLate demands that nothing was written where the late disk goes, before it was there.
func isOnlyLate(t *testing.T, g *ground.Ground) {
	t.Helper()
	g.MustRun(t, "findmnt /var/lib/unbounded && test -e /var/late/agent/install-state.json")
	beneath, err := os.ReadDir(filepath.Join(g.Root, "/var/lib/unbounded"))
	if err != nil || len(beneath) > 0 {
		t.Errorf("below the late disk: %v, %v", beneath, err)
	}
}

// isFound demands that start and reset find an installation below another prefix.
func isFound(t *testing.T, g *ground.Ground, prefix string) {
	t.Helper()
	g.MustRun(t, "test ! -e "+paths.DefaultRoot+" && systemctl start "+paths.Target)
	if got := g.ReadFile(t, paths.Record); !strings.Contains(got, prefix) {
		t.Errorf("the record does not name %s:\n%s", prefix, got)
	}
	g.MustRun(t, prefix+"/current/unboundedctl reset --yes")
	for _, path := range []string{paths.Record, paths.Complete, paths.Tree("kube1")} {
		if g.Exists(t, path) {
			t.Errorf("%s is there after the reset", path)
		}
	}
}
