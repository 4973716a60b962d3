package vm

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"unbounded/internal/paths"
	"unbounded/tests/ground"
	"unbounded/tests/host"
	"unbounded/tests/image"
)

// imaged makes the options those of an image-based machine. Its /usr is read-only by a mount of its own: what
// /etc/fstab says about /usr, an initramfs would carry out.
func imaged(options host.Options) host.Options {
	options = image.Options(options)
	overlay := map[string]host.File{
		paths.MachineID:                                       {Absent: true},
		"/etc/systemd/system/usr.mount":                       {Content: "[Unit]\nDefaultDependencies=no\nBefore=local-fs.target\n[Mount]\nWhat=/usr\nWhere=/usr\nOptions=bind,ro\n"},
		"/etc/systemd/system/local-fs.target.wants/usr.mount": {Link: "../usr.mount"},
	}
	maps.Copy(overlay, options.Overlay)
	options.Overlay = overlay
	return options
}

// Config is the configuration by which the machine becomes a node. An image-based machine has none of its own.
func (v *VM) Config(t host.T) []byte {
	t.Helper()
	encoded, err := json.Marshal(v.Ground.Config(t, v.changes))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return encoded
}

// Ignite boots an image-based machine for the first time, with the document that Ignition carries out in the initramfs, and
// more of a kernel command line. It returns as soon as the machine's own systemd runs. No later boot is one with Ignition:
// On leaves it out, as the boot loader does once Ignition has removed its mark.
func (v *VM) Ignite(t host.T, document []byte, more ...string) {
	t.Helper()
	began := time.Now()
	v.BeginIgnition(t, document, more...)
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	if err := v.now.hello(ctx); err != nil {
		t.Fatalf("first boot: %v\n%s", err, v.console())
	}
	t.Logf("through Ignition in %v", time.Since(began).Round(100*time.Millisecond))
}

// BeginIgnition is Ignite that does not wait.
func (v *VM) BeginIgnition(t host.T, document []byte, more ...string) {
	t.Helper()
	initrd, err := host.Artefact("vm-ignition")
	if err != nil {
		t.Fatalf("%v", err)
	}
	if err := os.WriteFile(v.path("document"), document, 0o600); err != nil {
		t.Fatalf("%v", err)
	}
	const mac = "52:54:00:12:34:56" // QEMU's own for a first card
	line := append([]string{
		commandLine, "root=/dev/vda rw ignition.firstboot ignition.platform.id=qemu",
		"rd.neednet=1 ifname=host0:" + mac + " ip=" + host.InsideIP + "::" + host.OutsideIP + ":255.255.255.0:" + ground.NodeName + ":host0:none",
		// If Ignition gives up nobody is at the console: say why there, and go off.
		"rd.shell=0 rd.emergency=poweroff rd.systemd.journald.forward_to_console=1 rd.systemd.journald.max_level_console=err",
	}, more...)
	v.start(t, "-initrd", filepath.Join(initrd, "initrd"), "-append", strings.Join(line, " "),
		"-fw_cfg", "name=opt/com.coreos/config,file="+v.path("document"))
}
