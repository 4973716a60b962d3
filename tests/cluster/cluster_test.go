//go:build host

package cluster_test

import (
	"os"
	"strings"
	"testing"

	"unbounded/tests/cluster"
	"unbounded/tests/host"
)

func TestMain(m *testing.M) { os.Exit(host.Main(m)) }

// The host reaches the API, and the API survives a reboot of the host.
func TestStart(t *testing.T) {
	h := host.Boot(t, host.Options{Bare: true})
	c := cluster.Start(t, h, cluster.Options{})
	for range 2 {
		got := h.MustRun(t, "curl --silent --insecure "+cluster.Server+"/version")
		if !strings.Contains(got, c.Version) {
			t.Errorf("/version = %q, want %s in it", got, c.Version)
		}
		h.Reboot(t)
	}
	c.StopAPI()
	if got := h.Run(t, "curl --silent --insecure "+cluster.Server+"/version"); got.Code == 0 {
		t.Errorf("the API answers after StopAPI: %s", got.Out)
	}
	c.StartAPI(t)
	if got := c.Kubectl(t, "get", "namespaces", "--output=name"); !strings.Contains(got, "namespace/kube-system") {
		t.Errorf("get namespaces = %q, want kube-system in it", got)
	}
}
