// Package legacy knows what the public agent leaves on a host that an installation of ours does not.
//
// Its names are only a claim. What could be the operator's has to prove itself: a unit or
// a script by what is written in it, a program by the module it was built from. What does
// not is not the agent's, and stays.
package legacy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

// BootstrapUnit installs the public agent again at every boot, where Ignition brought it.
const BootstrapUnit = "unbounded-agent-bootstrap.service"

const (
	module = "github.com/Azure/unbounded/" // in every program that is built from it, stripped or not
	kube   = "/etc/unbounded/kube"
	linked = paths.DefaultRoot + "/agent" // a link to paths.LegacyRoot on hosts that were installed earlier

	flushUnit      = "nftables-flush.service"
	localDNSUnit   = "unbounded-localdns-network.service"
	regenerateUnit = "unbounded-agent-regenerate-config@"
)

// roots are the folders that the public agent was installed below, the older first.
func roots() []string { return []string{paths.LegacyRoot, linked} }

// RecoveryScripts are what the recovery unit of the public agent runs, in all places where it may be.
func RecoveryScripts() []string {
	var scripts []string
	for _, root := range roots() {
		scripts = append(scripts, root+"/bin/unbounded-agent-daemon-recovery.sh")
	}
	return scripts
}

// Units are the units of the public agent on the host below root beside its daemon and BootstrapUnit, instances before their template.
// One whose name others use too is told by its file.
func Units(root string) ([]string, error) {
	var found []string
	for _, unit := range []struct{ name, proof string }{
		{flushUnit, kube + "/nftables-clear.nft"},
		{localDNSUnit, "/libexec/unbounded-localdns-network"}, // ours starts a program in current/
		{regenerateUnit + ".service", ""},
	} {
		ours, err := proven(paths.At(root, paths.SystemdDir+"/"+unit.name), unit.proof)
		if err != nil {
			return nil, err
		}
		if !ours {
			continue
		}
		if instance, ok := strings.CutSuffix(unit.name, "@.service"); ok {
			for _, slot := range paths.Slots() {
				found = append(found, instance+"@"+slot+".service")
			}
		}
		found = append(found, unit.name)
	}
	return found, nil
}

// Deployment is what shows, below root, that the public agent has been here and would get in the way of a node: paths
// of its units and scripts. Reset removes all of it.
func Deployment(root string) ([]string, error) {
	units, err := Units(root)
	if err != nil {
		return nil, err
	}
	candidates := RecoveryScripts()
	for _, unit := range append(units, BootstrapUnit) {
		candidates = append(candidates, paths.SystemdDir+"/"+unit)
	}
	return slices.DeleteFunc(candidates, func(path string) bool {
		_, statErr := os.Lstat(paths.At(root, path))
		if statErr != nil && !errors.Is(statErr, fs.ErrNotExist) {
			err = statErr
		}
		return statErr != nil
	}), err
}

// Files are the other files of the public agent on the host below root that prove to be its own, links before what they
// lead to. Others of these names are returned as foreign.
func Files(root string) (own, foreign []string, err error) {
	for _, candidate := range candidates(root) {
		info, err := os.Lstat(paths.At(root, candidate.path))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		ours := false
		switch {
		case !durable.Owned(info):
		case info.Mode()&fs.ModeSymlink != 0:
			ours, err = leads(root, candidate.path)
		case info.Mode().IsRegular():
			ours, err = proven(paths.At(root, candidate.path), candidate.proof)
		}
		switch {
		case err != nil:
			return nil, nil, err
		case ours:
			own = append(own, candidate.path)
		case !info.IsDir(): // /opt/unbounded/agent, when it is no link
			foreign = append(foreign, candidate.path)
		}
	}
	return own, foreign, nil
}

// candidate is a path that is the public agent's if the file there holds proof.
type candidate struct{ path, proof string }

func candidates(root string) []candidate {
	all := []candidate{{linked, ""}} // before what is reached through it
	for _, dir := range roots() {
		for _, name := range []string{"", "-current", "-last-good", "-blue", "-green", "-nspawn-lifecycle"} {
			all = append(all, candidate{dir + "/bin/unbounded-agent" + name, module})
		}
		for _, name := range []string{"-install.sh", "-uninstall.sh"} {
			all = append(all, candidate{dir + "/bin/unbounded-agent" + name, "unbounded-agent"})
		}
		all = append(all, candidate{dir + "/libexec/unbounded-localdns-network", "localdns"})
	}
	for _, path := range []string{
		kube + "/nftables-clear.nft", kube + "/localdns-network-backend", linked + "/.moving",
		paths.ConfigDir + "/host-root-agents", paths.ConfigDir + "/repave-state.json", "/tmp/unbounded-agent.json",
	} {
		all = append(all, candidate{path, ""})
	}
	configs, _ := filepath.Glob(paths.At(root, "/tmp/unbounded-agent-config.*.json")) // the pattern is valid
	for _, path := range configs {
		all = append(all, candidate{"/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/"), ""})
	}
	return all
}

// Trees are folders on the host below root that the public agent alone fills.
func Trees(root string) ([]string, error) {
	trees := []string{"/var/lib/unbounded/container-images", "/var/lib/unbounded/offline-artifacts"}
	const cache = "/tmp/unbounded-agent" // anybody can make it
	info, err := os.Lstat(paths.At(root, cache))
	if err == nil && info.IsDir() && durable.Owned(info) {
		trees = append(trees, cache)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return trees, err
}

// Folders are those of Files, and of the agent's configuration, inner before outer: they go when they are empty.
func Folders() []string {
	return []string{kube, linked + "/bin", linked + "/libexec", linked, paths.ConfigDir, filepath.Dir(paths.ConfigDir)}
}

// leads tells whether the link at path leads, in one step, to a name that is the agent's.
func leads(root, path string) (bool, error) {
	target, err := os.Readlink(paths.At(root, path))
	if path == linked {
		return target == paths.LegacyRoot, err
	}
	return strings.HasPrefix(filepath.Base(target), "unbounded-agent"), err
}

// proven tells whether the regular file at path holds proof; an absent one does not.
func proven(path, proof string) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !info.Mode().IsRegular() || proof == "" {
		return err == nil && proof == "", err
	}
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	found, err := contains(file, proof)
	if err != nil {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	return found, nil
}

// contains looks for text in r a piece at a time: programs are large.
func contains(r io.Reader, text string) (bool, error) {
	buffer := make([]byte, 1<<16)
	kept := 0
	for {
		n, err := r.Read(buffer[kept:])
		piece := buffer[:kept+n]
		if bytes.Contains(piece, []byte(text)) {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		kept = copy(buffer, piece[max(0, len(piece)-len(text)+1):])
	}
}
