package legacy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

const (
	bin     = paths.LegacyRoot + "/bin"
	program = "\x7fELF…" + module + "cmd/agent…"
)

func lay(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range files {
		path = paths.At(root, path)
		if target, ok := strings.CutPrefix(content, "->"); ok {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := durable.Replace(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestUnits(t *testing.T) {
	unit := func(name string) string { return paths.SystemdDir + "/" + name }
	for _, test := range []struct {
		name  string
		files map[string]string
		want  []string
		shows []string
	}{
		{name: "nothing"},
		{
			name:  "the agent's",
			files: map[string]string{unit(flushUnit): "ExecStart=/usr/sbin/nft -f /etc/unbounded/kube/nftables-clear.nft\n"},
			want:  []string{flushUnit}, shows: []string{unit(flushUnit)},
		},
		{name: "an operator's of that name", files: map[string]string{unit(flushUnit): "ExecStart=/usr/sbin/nft -f /etc/mine.nft\n"}},
		{
			name:  "LocalDNS",
			files: map[string]string{unit(localDNSUnit): "ExecStart=/opt/unbounded/agent/libexec/unbounded-localdns-network\n"},
			want:  []string{localDNSUnit}, shows: []string{unit(localDNSUnit)},
		},
		{name: "our own LocalDNS", files: map[string]string{unit(localDNSUnit): "ExecStart=/opt/unbounded/current/unbounded-localdns converge\n"}},
		{
			name:  "the template and its instances",
			files: map[string]string{unit(regenerateUnit + ".service"): "[Service]\n"},
			want: []string{
				regenerateUnit + "kube1.service", regenerateUnit + "kube2.service", regenerateUnit + ".service",
			},
			shows: []string{unit(regenerateUnit + ".service")},
		},
		{name: "the unit of the boot", files: map[string]string{unit(BootstrapUnit): "x"}, shows: []string{unit(BootstrapUnit)}},
		{name: "a script", files: map[string]string{RecoveryScripts()[1]: "x"}, shows: []string{RecoveryScripts()[1]}},
		{name: "ours", files: map[string]string{paths.DefaultRoot + "/current": "->slots/blue"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := lay(t, test.files)
			got, err := Units(root)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("Units() (-want +got):\n%s", diff)
			}
			shows, err := Deployment(root)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.shows, shows, cmpEmpty); diff != "" {
				t.Errorf("Deployment() (-want +got):\n%s", diff)
			}
		})
	}
}

// cmpEmpty takes an empty list for none.
var cmpEmpty = cmp.Transformer("none", func(list []string) []string { return append([]string{}, list...) })

func TestFiles(t *testing.T) {
	for _, test := range []struct {
		name         string
		files        map[string]string
		own, foreign []string
	}{
		{name: "nothing"},
		{
			name: "blue and green",
			files: map[string]string{
				bin + "/unbounded-agent":           "->unbounded-agent-current",
				bin + "/unbounded-agent-current":   "->/usr/local/bin/unbounded-agent-blue",
				bin + "/unbounded-agent-last-good": "->unbounded-agent-green", // which leads nowhere
				bin + "/unbounded-agent-blue":      strings.Repeat("x", 1<<16-10) + program,
				bin + "/kubectl":                   program,
			},
			own: []string{
				bin + "/unbounded-agent", bin + "/unbounded-agent-current", bin + "/unbounded-agent-last-good", bin + "/unbounded-agent-blue",
			},
		},
		{
			name:    "an operator's wrapper of that name",
			files:   map[string]string{bin + "/unbounded-agent": "#!/bin/sh\nexec true\n", bin + "/unbounded-agent-current": "->/usr/bin/true"},
			foreign: []string{bin + "/unbounded-agent", bin + "/unbounded-agent-current"},
		},
		{
			name: "the later folder",
			files: map[string]string{
				linked + "/bin/unbounded-agent-green":           program,
				linked + "/libexec/unbounded-localdns-network":  "#!/bin/sh\nip link add localdns type dummy\n",
				"/tmp/unbounded-agent-config.a1b2.json":         "{}",
				"/etc/unbounded/kube/nftables-clear.nft":        "flush ruleset\n",
				paths.ConfigDir + "/host-root-agents":           "{}",
				paths.ConfigDir + "/config.json":                "{}",
				paths.DefaultRoot + "/images/unbounded-agent":   program,
				paths.DefaultRoot + "/slots/blue/unbounded-x":   program,
				"/etc/unbounded/kube/of-the-operator-of-a-host": "",
			},
			own: []string{
				linked + "/bin/unbounded-agent-green", linked + "/libexec/unbounded-localdns-network", kube + "/nftables-clear.nft",
				paths.ConfigDir + "/host-root-agents", "/tmp/unbounded-agent-config.a1b2.json",
			},
		},
		{
			name: "a linked folder is a link, not what it leads to",
			files: map[string]string{
				linked: "->" + paths.LegacyRoot, bin + "/unbounded-agent-blue": program,
			},
			own: []string{linked, bin + "/unbounded-agent-blue"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			own, foreign, err := Files(lay(t, test.files))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.own, own); diff != "" {
				t.Errorf("own (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.foreign, foreign); diff != "" {
				t.Errorf("foreign (-want +got):\n%s", diff)
			}
		})
	}
}
