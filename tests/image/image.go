// Package image makes image-based hosts for tests, as Flatcar and Azure Container Linux
// are: no package manager, a read-only /usr, a firewall of the distribution's own, and a
// first boot that an Ignition document has prepared. The document is applied by the real
// Ignition, stage by stage, as an initramfs would: see Apply.
package image

import (
	"bytes"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"unbounded/internal/paths"
	"unbounded/tests/host"
	"unbounded/tests/serve"
)

// Options choose an image-based host: changes to what host.Options say. It is off, so
// that a document can be applied first, and the product is not in the image.
func Options(options host.Options) host.Options {
	options.Bare, options.Off = true, true
	// Its own /usr, again and read-only, as the initramfs of an image-based host mounts it.
	options.Args = append(slices.Clone(options.Args), "--bind-ro=+/usr:/usr", "--tmpfs=/tmp:mode=1777,nosuid,nodev,noexec")
	overlay := distribution()
	maps.Copy(overlay, options.Overlay)
	options.Overlay = overlay
	return options
}

// distribution is what makes a Debian such a distribution.
func distribution() map[string]host.File {
	const unit = "/usr/lib/systemd/system/"
	files := map[string]host.File{
		"/usr/lib/os-release": {Content: "NAME=\"Ground Container Linux\"\nID=ground\nID_LIKE=coreos\nVERSION_ID=1\n" +
			"PRETTY_NAME=\"Ground Container Linux\"\n"},
		// Ignition has labels set by a policy, on a host that has none too.
		"/etc/selinux/config":                                {Content: "SELINUX=disabled\nSELINUXTYPE=targeted\n"},
		"/etc/selinux/targeted/contexts/files/file_contexts": {},
		// Such images enable what they want themselves.
		"/usr/lib/systemd/system-preset/00-image.preset":               {Content: "disable *\n"},
		unit + "iptables.service":                                      {Content: firewall},
		"/etc/systemd/system/multi-user.target.wants/iptables.service": {Link: unit + "iptables.service"},
	}
	for _, path := range []string{
		"/usr/bin/apt", "/usr/bin/apt-get", "/usr/bin/apt-cache", "/usr/bin/dpkg", "/usr/bin/dpkg-query",
		"/usr/lib/apt", "/usr/lib/dpkg", "/etc/apt", "/var/lib/apt", "/var/lib/dpkg",
	} {
		files[path] = host.File{Absent: true}
	}
	return files
}

// firewall is what Azure Container Linux loads: nobody reaches the host but by ssh.
const firewall = `[Unit]
Description=The distribution's packet filter
After=syslog.target
Before=network-pre.target
Wants=network-pre.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/iptables -A INPUT -i lo -j ACCEPT
ExecStart=/usr/sbin/iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
ExecStart=/usr/sbin/iptables -A INPUT -p tcp --dport 22 -j ACCEPT
ExecStart=/usr/sbin/iptables -P INPUT DROP

[Install]
WantedBy=multi-user.target
`

// programs is where Serve serves them.
const programs = host.OutsideIP + ":9000"

// Serve serves the programs of the product to a host and to its Ignition.
func Serve(t host.T, h *host.Host) *serve.Server {
	t.Helper()
	return serve.Start(t, h, programs, http.FileServer(http.Dir(binaries(t))))
}

func binaries(t host.T) string {
	t.Helper()
	product, err := host.Product()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return filepath.Join(product, paths.DefaultRoot, "slots/blue")
}

// Document makes an Ignition document as an operator does, of a configuration, unless the
// options say where the host has it from, and of the programs that Serve serves.
func Document(t host.T, config []byte, options ...string) []byte {
	t.Helper()
	dir := binaries(t)
	words := append([]string{"ignition", "--binaries", dir, "--base-url", "http://" + programs}, options...)
	if config != nil {
		words = append(words, "--config", "-")
	}
	generate := exec.CommandContext(t.Context(), filepath.Join(dir, "unboundedctl"), words...)
	generate.Stdin = bytes.NewReader(config)
	var document, report bytes.Buffer
	generate.Stdout, generate.Stderr = &document, &report
	if err := generate.Run(); err != nil {
		t.Fatalf("unboundedctl ignition: %v\n%s", err, report.String())
	}
	return document.Bytes()
}

// Apply has Ignition apply a document to the tree of a host that is off. URLs in it are
// fetched from where the servers of the test stand.
func Apply(t host.T, h *host.Host, document []byte) {
	t.Helper()
	artefact, err := host.Artefact("ignition")
	if err != nil {
		t.Fatalf("%v", err)
	}
	work, err := os.MkdirTemp(h.Dir, "ignition.")
	if err != nil {
		t.Fatalf("%v", err)
	}
	file := func(name string) string { return filepath.Join(work, name) }
	if err := os.WriteFile(file("document"), document, 0o600); err != nil {
		t.Fatalf("%v", err)
	}
	for _, stage := range []string{"fetch-offline", "fetch", "files"} {
		ignition := h.Outside(t.Context(), filepath.Join(artefact, "ignition"), "-platform", "file", "-stage", stage,
			"-root", filepath.Join(h.Dir, "root"), // as it is called there, in the host's surroundings
			"-config-cache", file("cache"), "-state-file", file("state"), "-neednet", file("neednet"), "-log-to-stdout")
		ignition.Env = append(ignition.Env, "IGNITION_CONFIG_FILE="+file("document"))
		if out, err := ignition.CombinedOutput(); err != nil {
			// It says all that it does, and its reason last.
			t.Fatalf("ignition, stage %s: %v\n%s", stage, err, out[max(0, len(out)-2048):])
		}
	}
}
