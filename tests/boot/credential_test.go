//go:build host

package boot

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

const (
	dropIn = "/etc/systemd/system/" + paths.AdmitUnit + ".d/10-credential.conf"
	token  = "abcdef.0123456789abcdef"
)

func configuration(name string) string {
	return fmt.Sprintf(`{"MachineName":%q,"Cluster":{"Version":"v1.37.2"},"Kubelet":{"ApiServer":"https://api.test:6443","Auth":{"BootstrapToken":%q}},"OCIImage":"r.test/node:1"}`, name, token)
}

// unseen holds what everybody can see of the host to not having the token.
func unseen(t *testing.T, h *host.Host) {
	t.Helper()
	for _, look := range []string{
		"journalctl -b -a -o verbose", "systemctl show " + paths.AdmitUnit, "systemctl cat " + paths.AdmitUnit,
		"cat " + paths.Record, "cat " + paths.LastFailure + " || true", "find /run/unbounded -perm /077 -type f -exec cat {} +",
	} {
		if got := h.Run(t, look).Out; strings.Contains(got, token) {
			t.Errorf("%s shows the token", look)
		}
	}
}

// The host was booted with the configuration as a credential; its operator's file goes before it.
func TestCredential(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		given := configuration("m1") + "\n\n"
		h := host.Boot(t, host.Options{
			Release: release,
			Args:    []string{"--set-credential=" + paths.Credential + ":" + strings.ReplaceAll(given, "\n", `\n`)},
			Overlay: map[string]host.File{dropIn: {Content: "[Service]\nLoadCredential=" + paths.Credential + "\n"}},
		})
		checked := h.Run(t, paths.DefaultRoot+"/current/unbounded-preflight check --output json")
		if !strings.Contains(checked.Out, `"agent-config"`) || strings.Contains(checked.Out, token) {
			t.Errorf("preflight check: %d %s%s", checked.Code, checked.Out, checked.Err)
		}
		h.MustRun(t, "systemctl start "+paths.AdmitUnit)
		if got := h.ReadFile(t, paths.Admitted); got != given {
			t.Errorf("admitted %q, want the credential", got)
		}
		if mode := h.MustRun(t, "stat -c %a:%U "+paths.Admitted); mode != "600:root\n" {
			t.Errorf("%s is %s, want 600:root", paths.Admitted, mode)
		}
		if got := h.Journal(t, paths.AdmitUnit); !strings.Contains(got, "the configuration is the credential "+paths.Credential) {
			t.Errorf("the journal does not say where the configuration is from: %s", got)
		}
		unseen(t, h)

		h.WriteFile(t, paths.Config, host.File{Content: configuration("m2"), Mode: 0o600})
		h.Run(t, "systemctl start "+paths.AdmitUnit)
		if got := h.Journal(t, paths.AdmitUnit); !strings.Contains(got, `installed as MachineName "m1", the configuration says "m2"`) {
			t.Errorf("the file does not go before the credential: %s", got)
		}
		h.MustRun(t, "rm "+paths.Config+" && systemctl start "+paths.AdmitUnit)
		unseen(t, h)
	})
}

// Nobody gives the credential. It may come yet, so that is tried again, whether systemd passes over it or, where it is named by
// a path, does not start the service. A complete host needs none.
func TestCredentialIsMissing(t *testing.T) {
	releases(t, func(t *testing.T, release string) {
		h := host.Boot(t, host.Options{Release: release, Overlay: map[string]host.File{
			dropIn: {Content: "[Service]\nLoadCredential=" + paths.Credential + "\n"},
		}})
		h.MustRun(t, "systemctl start "+paths.BootUnit)
		h.Await(t, time.Minute, "systemctl status "+paths.BootUnit+" | grep 'attempt 1 failed: "+paths.AdmitUnit+" ended with 1; next one in [12][0-9]s'")
		if got := h.ReadFile(t, paths.LastFailure); !strings.Contains(got, paths.Config+" is missing") || !strings.Contains(got, "the credential "+paths.Credential) {
			t.Errorf("the note is %s", got)
		}
		h.MustRun(t, "systemctl stop "+paths.BootUnit)

		byPath := "[Service]\nLoadCredential=" + paths.Credential + ":/etc/secret/config\n"
		h.WriteFile(t, dropIn, host.File{Content: byPath})
		h.MustRun(t, "systemctl daemon-reload; systemctl start "+paths.BootUnit)
		h.Await(t, time.Minute, "systemctl status "+paths.BootUnit+" | grep 'attempt 1 failed: "+paths.AdmitUnit+" ended with 243; next one in [12][0-9]s'")
		h.Await(t, time.Minute, "grep -q 'could not be executed: status 243' "+paths.LastFailure+" && grep "+paths.AdmitUnit+" "+paths.LastFailure)
		h.WriteFile(t, "/etc/secret/config", host.File{Content: configuration("m1"), Mode: 0o600})
		h.Await(t, time.Minute, "test -e "+paths.Admitted)
		h.MustRun(t, "systemctl stop 'unbounded-*'")

		// What ends an installation, and then the credential is gone.
		h.MustRun(t, "rm /etc/secret/config; sed -i 's/\"installing\"/\"complete\"/' "+paths.Record+"; "+mark)
		h.WriteFile(t, dropIn, host.File{Content: "[Service]\nLoadCredential=" + paths.Credential + "\n"})
		h.MustRun(t, "systemctl daemon-reload; systemctl start "+paths.AdmitUnit)
		if got := h.Journal(t, paths.AdmitUnit); !strings.Contains(got, "the host is complete and needs none") {
			t.Errorf("a complete host: %s", got)
		}
		// With a path it needs a default, and an empty one is no credential.
		h.WriteFile(t, dropIn, host.File{Content: byPath + "SetCredential=" + paths.Credential + `:\n` + "\n"})
		h.MustRun(t, "systemctl daemon-reload; systemctl start "+paths.AdmitUnit)
	})
}
