// Package resolv decides how a machine and its pods resolve names.
//
// The machine gets what the host has: it shares the host's network, a stub on loopback works
// there, and nspawn copies the file anew whenever the machine starts. Pods have a network
// of their own; for them a stub would be themselves, and a DNS server among them
// would ask itself.
package resolv

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"unbounded/internal/exit"
	"unbounded/internal/paths"
)

// The files.
const (
	Host   = "/etc/resolv.conf"
	Uplink = "/run/systemd/resolve/resolv.conf" // systemd-resolved's own upstreams
	Pods   = "/etc/unbounded/resolv.conf"       // in the machine, where the host's cannot be used
)

const remedy = "put a nameserver that pods can reach into " + Host + ", or name a file in the machine as Kubelet.Configuration.resolvConf"

// Choice is how the machine and its pods resolve names.
type Choice struct {
	Machine string // content of the machine's own file: the host's
	File    string // in the machine: what kubelet gives to pods, Host or Pods
	Pods    string // content of Pods, when File is that
	Notice  string // what the operator should know, or ""
}

// Read looks at the host below root and chooses. A dangling link is an absent file, and that an empty one.
func Read(root string) (Choice, error) {
	host, err := read(paths.At(root, Host))
	if err != nil {
		return Choice{}, err
	}
	uplink, err := read(paths.At(root, Uplink))
	if err != nil {
		return Choice{}, err
	}
	return Choose(host, uplink)
}

func read(path string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(data), err
}

// Choose decides by the content of Host and Uplink. With an error the choice is still what
// fits a node that has a file of its own for pods.
func Choose(host, uplink string) (Choice, error) {
	c := Choice{Machine: host, File: Host}
	outside, local := nameservers(host)
	if upstreams, _ := nameservers(uplink); len(upstreams) > 0 && len(outside) == 0 {
		c.File, c.Pods = Pods, withoutLocal(uplink)
		return c, nil
	}
	switch {
	case len(outside)+len(local) == 0:
		c.Notice = Host + " names no resolver, so pods that use the host's have none: " + remedy
		return c, nil
	case len(local) == 0:
		return c, nil
	case len(outside) > 0:
		c.File, c.Pods = Pods, withoutLocal(host)
		c.Notice = fmt.Sprintf("pods do not get resolver %s of %s, which only the host can reach", local[0], Host)
		return c, nil
	}
	err := fmt.Errorf("%s names only %s, which pods cannot reach", Host, local[0])
	if stub(local[0]) {
		return c, fmt.Errorf("%w, and systemd-resolved knows no other yet: connect the host, or %s", err, remedy)
	}
	return c, exit.As(exit.Refused, fmt.Errorf("%w: %s", err, remedy))
}

// stub tells whether address is one of systemd-resolved's.
func stub(address netip.Addr) bool {
	text := address.String()
	return text == "127.0.0.53" || text == "127.0.0.54"
}

// nameservers are the addresses of a resolv.conf: those that pods can reach, and those of the host alone.
func nameservers(conf string) (outside, local []netip.Addr) {
	for line := range strings.Lines(conf) {
		address, ok := nameserver(line)
		switch {
		case !ok:
		case address.IsLoopback() || address.IsUnspecified():
			local = append(local, address)
		default:
			outside = append(outside, address)
		}
	}
	return outside, local
}

func nameserver(line string) (netip.Addr, bool) {
	fields := strings.Fields(line)
	if len(fields) < 2 || fields[0] != "nameserver" {
		return netip.Addr{}, false
	}
	address, err := netip.ParseAddr(fields[1])
	return address.Unmap(), err == nil
}

func withoutLocal(conf string) string {
	var kept strings.Builder
	for line := range strings.Lines(conf) {
		if address, ok := nameserver(line); ok && (address.IsLoopback() || address.IsUnspecified()) {
			continue
		}
		kept.WriteString(line)
	}
	return kept.String()
}
