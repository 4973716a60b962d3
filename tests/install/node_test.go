//go:build cluster

package install

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
	"unbounded/tests/release"
	"unbounded/tests/serve"
)

// cloudInit does with the example what cloud-init does in a first boot: files, then the commands.
func cloudInit(t *testing.T, g *ground.Ground, config cloudConfig) host.Result {
	t.Helper()
	for _, file := range config.WriteFiles {
		mode, err := strconv.ParseUint(file.Permissions, 8, 32)
		if err != nil {
			t.Fatal(err)
		}
		g.WriteFile(t, file.Path, host.File{Content: file.Content, Mode: os.FileMode(mode)})
	}
	script, err := config.script()
	if err != nil {
		t.Fatal(err)
	}
	const runcmd = "/var/lib/cloud/instance/scripts/runcmd"
	g.WriteFile(t, runcmd, host.File{Content: script, Mode: 0o700})
	return g.Run(t, "systemd-run --quiet --wait --pipe --unit=cloud-final "+runcmd)
}

// made is a release as scripts/release makes it, in a folder, with its SHA256SUMS.
func made(t *testing.T, version string) (dir string, sums map[string]string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "dist")
	if err := release.Make(t.Context(), "../..", dir, runtime.GOARCH, "VERSION="+version); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	sums = map[string]string{}
	for line := range strings.Lines(string(list)) {
		if fields := strings.Fields(line); len(fields) == 2 {
			sums[fields[1]] = fields[0]
		}
	}
	return dir, sums
}

// The example as it stands, but for what its reader is told to fill in, makes a node of a release; again, it changes nothing.
func TestCloudInit(t *testing.T) {
	const version = "v0.1.0" // the example's
	dir, sums := made(t, version)
	g := ground.Boot(t, ground.Options{Host: host.Options{Bare: true}})
	serve.Start(t, g.Host, address, http.FileServer(http.Dir(dir)))
	g.MustRun(t, "rm "+ground.ConfigPath)

	config, err := example("https://downloads.example.com/unbounded/$version", "http://"+address,
		strings.Repeat("0", 64), sums["install.sh"], strings.Repeat("1", 64), sums["unbounded-"+version+"-linux-"+runtime.GOARCH+".tar.gz"])
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(g.Config(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	config.WriteFiles[0].Content = string(content)

	if got := cloudInit(t, g, config); got.Code != 0 || strings.Contains(got.Out+got.Err, g.Cluster.Token) {
		t.Fatalf("cloud-init: %d\n%s%s", got.Code, got.Out, got.Err)
	}
	g.Cluster.AwaitReady(t, ground.NodeName, 5*time.Minute)
	g.Await(t, time.Minute, "test -e "+paths.Complete+" && ! systemctl is-active --quiet "+paths.BootUnit)

	s := scene{Host: g.Host}
	placed := func() host.Tree {
		return g.Tree(t, host.TreeOptions{Paths: []string{paths.DefaultRoot, paths.SystemdDir, paths.Config, paths.State, "/usr/local"}, Running: true})
	}
	before, leader := placed(), g.MustRun(t, "machinectl show -p Leader --value kube1")
	for run := range 2 {
		if got := cloudInit(t, g, config); got.Code != 0 {
			t.Fatalf("cloud-init, run %d: %d\n%s%s", run+2, got.Code, got.Out, got.Err)
		}
	}
	if diff := cmp.Diff(before, placed()); diff != "" {
		t.Errorf("other runs changed the host:\n%s", diff)
	}
	if now := g.MustRun(t, "machinectl show -p Leader --value kube1"); now != leader {
		t.Errorf("the machine was restarted: leader %s, was %s", now, leader)
	}
	s.tidy(t)
	if left := g.MustRun(t, "ls -d /run/unbounded-cloud-init.* 2>/dev/null || true"); left != "" {
		t.Errorf("left behind: %s", left)
	}
	// Another machine's user-data is refused, and the configuration stays.
	config.WriteFiles[0].Content = strings.Replace(string(content), fmt.Sprintf(`"MachineName":%q`, ground.NodeName), `"MachineName":"node-2"`, 1)
	if got := cloudInit(t, g, config); got.Code != 78 {
		t.Errorf("cloud-init of another machine = %d, want 78\n%s%s", got.Code, got.Out, got.Err)
	}
	if diff := cmp.Diff(before, placed()); diff != "" {
		t.Errorf("a refused run changed the host:\n%s", diff)
	}
}
