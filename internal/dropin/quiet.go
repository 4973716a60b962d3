package dropin

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"unbounded/internal/durable"
	"unbounded/internal/paths"
)

// Quiet is the text of a drop-in with which a oneshot service becomes active without running anything.
//
// It is how a firewall becomes what it was when its rules have been put back already: running its
// program would flush the rules of everybody, and lose what was added since it last ran. A service that stays
// active needs no ExecStart= (systemd 230 and later), but then an ExecStop=, which never runs: the drop-in is gone before
// anybody stops the service. It lies below /run: what a killed attempt leaves is swept by the next, and by a reboot.
const Quiet = `# Written by unbounded-conflicts.service for a moment of ` + paths.ResetTarget + `.
[Service]
ExecCondition=
ExecStartPre=
ExecStart=
ExecStartPost=
ExecStop=
ExecStop=-/bin/true
`

const (
	runDir    = "/run/systemd/system"
	quietName = "zzzz-unbounded-reset.conf" // behind those of others
)

// QuietPath is where unit's quiet drop-in is.
func QuietPath(unit string) string { return runDir + "/" + unit + ".d/" + quietName }

// SweepQuiet removes all quiet drop-ins and tells whether there were any: then systemd must reload.
func SweepQuiet(root string) (swept bool, err error) {
	files, err := filepath.Glob(paths.At(root, runDir+"/*.d/"+quietName))
	if err != nil {
		return false, err
	}
	for _, file := range files {
		if err := remove(file); err != nil {
			return swept, err
		}
		swept = true
	}
	return swept, nil
}

// remove removes file and its folder, if that is empty then.
func remove(file string) error {
	if _, err := durable.Remove(file); err != nil {
		return err
	}
	_, err := durable.Remove(filepath.Dir(file))
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return err
}

// RemoveAll removes the condition drop-ins that show by their content that they are ours, and returns their units: for a host
// whose before-image is lost.
func RemoveAll(root string) (units []string, err error) {
	files, err := filepath.Glob(paths.At(root, paths.SystemdDir+"/*.d/"+base()))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		unit := strings.TrimSuffix(filepath.Base(filepath.Dir(file)), ".d")
		text, err := os.ReadFile(file)
		if err != nil {
			return units, err
		}
		if !strings.HasPrefix(string(text), Content(unit, "")) {
			continue
		}
		if err := remove(file); err != nil {
			return units, err
		}
		units = append(units, unit)
	}
	return units, nil
}
