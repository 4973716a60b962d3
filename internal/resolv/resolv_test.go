package resolv_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/exit"
	"unbounded/internal/resolv"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	const stub, uplink = "nameserver 127.0.0.53\noptions edns0\nsearch a.test\n", "nameserver 10.0.0.2\nnameserver ::1\nsearch a.test\n"
	for _, test := range []struct {
		name, host, uplink, file, pods string
		notice                         bool
		status                         exit.Status
	}{
		{name: "plain", host: "nameserver 10.0.0.1\n", uplink: uplink, file: resolv.Host},
		{name: "stub", host: stub, uplink: uplink, file: resolv.Pods, pods: "nameserver 10.0.0.2\nsearch a.test\n"},
		{name: "stub, uplink still empty", host: stub, uplink: "# nothing\n", file: resolv.Host, status: exit.Failed},
		{name: "stub of IPv6 with uplink", host: "nameserver ::1\n", uplink: uplink, file: resolv.Pods, pods: "nameserver 10.0.0.2\nsearch a.test\n"},
		{name: "local resolver", host: "nameserver ::1\n", file: resolv.Host, status: exit.Refused},
		{name: "mapped", host: "nameserver ::ffff:127.0.0.1\n", file: resolv.Host, status: exit.Refused},
		{name: "local and outside", host: "nameserver 127.0.0.1\nnameserver 10.0.0.1\n", file: resolv.Pods, pods: "nameserver 10.0.0.1\n", notice: true},
		{name: "empty", file: resolv.Host, notice: true},
		{name: "comments", host: "# nameserver 127.0.0.1\nsearch x\nnameserver\nnameserver x\n", file: resolv.Host, notice: true},
		{name: "absent with uplink", uplink: uplink, file: resolv.Pods, pods: "nameserver 10.0.0.2\nsearch a.test\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			have, err := resolv.Choose(test.host, test.uplink)
			if exit.Of(err) != test.status {
				t.Errorf("Choose() = %v, want status %d", err, test.status)
			}
			if have.Machine != test.host || have.File != test.file || have.Pods != test.pods || (have.Notice != "") != test.notice {
				t.Errorf("Choose() = %+v", have)
			}
		})
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../run/systemd/resolve/stub-resolv.conf", filepath.Join(root, resolv.Host)); err != nil {
		t.Fatal(err)
	}
	have, err := resolv.Read(root)
	if err != nil || have.Notice == "" {
		t.Errorf("Read(dangling) = %+v, %v, want a notice", have, err)
	}
	if err := os.Remove(filepath.Join(root, resolv.Host)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, resolv.Host), []byte("nameserver 10.0.0.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	have, err = resolv.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(resolv.Choice{Machine: "nameserver 10.0.0.1\n", File: resolv.Host}, have); diff != "" {
		t.Errorf("Read (-want +have):\n%s", diff)
	}
}
