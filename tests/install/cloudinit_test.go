package install

import (
	"encoding/base64"
	"encoding/pem"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"unbounded/internal/config"
	"unbounded/internal/paths"
)

const placeholderCA = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCi4uLgo="

func someCA(t *testing.T) string {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	block := pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&block))
}

// The example is what cloud-init takes, keeps its secrets, and has a configuration that is one.
func TestExample(t *testing.T) {
	example, err := example(placeholderCA, someCA(t))
	if err != nil {
		t.Fatal(err)
	}
	script, err := example.script()
	if err != nil {
		t.Fatal(err)
	}
	check := exec.CommandContext(t.Context(), "sh", "-n")
	check.Stdin = strings.NewReader(script)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("sh -n: %v\n%s", err, out)
	}
	if strings.Contains(script, "abcdef.") {
		t.Error("the token is in runcmd, which is logged")
	}
	if len(example.WriteFiles) != 1 {
		t.Fatalf("the example writes %d files, want the configuration", len(example.WriteFiles))
	}
	file := example.WriteFiles[0]
	if file.Permissions != "0600" || file.Owner != "root:root" || file.Path == paths.Config || !strings.Contains(script, file.Path) {
		t.Errorf("%s is %s of %s", file.Path, file.Permissions, file.Owner)
	}
	host := config.ReadHost("/")
	host.Hostname = "node-1"
	if _, err := config.Parse([]byte(file.Content), host); err != nil {
		t.Error(err)
	}
}
