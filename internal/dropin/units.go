package dropin

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"unbounded/internal/before"
	"unbounded/internal/fstab"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
)

// Units is what is asked of the host's service manager.
type Units interface {
	Properties(ctx context.Context, unit string) (systemd.Properties, error)
	ListUnits(ctx context.Context, patterns ...string) (map[string]string, error)
}

// Runtimes are services that want the node's ports, cgroups or packet filter. The socket comes first: it would start docker again.
func Runtimes() []string {
	return []string{"docker.socket", "docker.service", paths.ContainerdUnit, paths.KubeletUnit}
}

// Swappers are services of Debian, Ubuntu and others that turn swap on without a swap unit.
func Swappers() []string {
	return []string{"zramswap.service", "zram-config.service", "dphys-swapfile.service", "systemd-swap.service"}
}

// SwapUnits are the units that activate swap by themselves. Those made from fstab go with its lines, and those
// that only mirror an active area have no file.
func SwapUnits(ctx context.Context, root string, units Units) ([]string, error) {
	loaded, err := units.ListUnits(ctx, "*.swap")
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(paths.At(root, paths.SystemdDir+"/*.swap"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		loaded[filepath.Base(file)] = ""
	}
	var names []string
	for name := range loaded {
		p, err := units.Properties(ctx, name)
		if err != nil {
			return nil, err
		}
		if p.FragmentPath != "" && p.SourcePath != fstab.File {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Look reads the properties of names.
func Look(ctx context.Context, units Units, names []string) (map[string]systemd.Properties, error) {
	all := map[string]systemd.Properties{}
	for _, name := range names {
		p, err := units.Properties(ctx, name)
		if err != nil {
			return nil, err
		}
		all[name] = p
	}
	return all, nil
}

// Running are the changes that stop those of names that run, in this order. Swap units are not among them: they
// stop with their area.
func Running(names []string, all map[string]systemd.Properties) []before.Change {
	var changes []before.Change
	for _, name := range names {
		if p := all[name]; p.Runs() && !strings.HasSuffix(name, ".swap") {
			changes = append(changes, before.Change{
				Kind: before.Unit, Object: name, Want: before.Text("inactive"),
				Now: before.State{Value: "active", UnitFile: p.UnitFileState},
			})
		}
	}
	return changes
}
