package system_test

import (
	"fmt"
	"strings"
	"testing"

	"unbounded/internal/golden"
	"unbounded/internal/resolv"
	"unbounded/internal/system"
)

func TestFiles(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, f := range system.Files("host-1", system.ID("00112233445566778899aabbccddeeff", "kube1"),
		resolv.Choice{Machine: "nameserver 127.0.0.53\n", File: resolv.Pods, Pods: "nameserver 10.0.0.1\n"}) {
		fmt.Fprintf(&text, "%s %d %v %q %q\n", f.Path, f.Kind, f.Mode, f.Data, f.Service)
	}
	golden.Check(t, "testdata/files", text.String())
}

func TestID(t *testing.T) {
	t.Parallel()
	const install = "00112233445566778899aabbccddeeff"
	first, again, other := system.ID(install, "kube1"), system.ID(install, "kube1"), system.ID(install, "kube2")
	if first != again || first == other || len(first) != 32 || first[12] != '4' {
		t.Errorf("ID() = %s, %s, %s", first, again, other)
	}
}
