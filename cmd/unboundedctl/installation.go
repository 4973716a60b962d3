package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"unbounded/internal/exit"
	"unbounded/internal/installed"
	"unbounded/internal/paths"
)

// installation is what uninstall removes.
type installation struct {
	self, prefix string
	units, rest  []string // rest: without self and the manifest
	config       []string
}

// placed reads what the installer of this very program says it placed.
func (p *program) placed(options options) (installation, error) {
	self, err := p.self()
	if err != nil {
		return installation{}, err
	}
	i := installation{self: self}
	if i.prefix, err = installed.PrefixOf(self); err != nil {
		return i, exit.As(exit.Refused, err)
	}
	if err := p.files(i.prefix, options); err != nil {
		return i, err
	}
	all, err := installed.Manifest(p.root, i.prefix)
	if errors.Is(err, fs.ErrNotExist) {
		return i, exit.As(exit.Refused, fmt.Errorf("%w; install this release over it, then uninstall", err))
	}
	if err != nil {
		return i, err
	}
	for _, path := range all {
		if err := p.belongs(i.prefix, path); err != nil {
			return i, err
		}
		switch {
		case path == self:
		case unit(path):
			i.units = append(i.units, path)
		default:
			i.rest = append(i.rest, path)
		}
	}
	if !options.keepConfig {
		i.config = []string{paths.Config, paths.RegistryAuth}
	}
	return i, nil
}

// files refuses what is no files of this host: a system extension lies over /usr, which is read-only while it does.
func (p *program) files(prefix string, options options) error {
	images, merged, err := installed.Extension(p.root, prefix)
	if err != nil || !merged {
		return err
	}
	hints := []string{"rm -r " + strings.Join(images, " "), "systemd-sysext refresh"}
	if len(images) == 0 { // the system's image brings it, or nothing does any more
		hints = hints[1:]
	}
	if !options.keepConfig {
		hints = append(hints, "rm -f "+paths.Config+" "+paths.RegistryAuth)
	}
	return exit.As(exit.Refused, &hinted{fmt.Errorf("%s comes with a system extension, which is taken off as a whole", prefix), hints})
}

// unit tells whether path is a unit file.
func unit(path string) bool {
	return strings.HasSuffix(path, ".service") || strings.HasSuffix(path, ".target")
}

// belongs refuses a unit that starts the programs of another prefix: the last installer wins, and it is not ours.
func (p *program) belongs(prefix, path string) error {
	if !unit(path) {
		return nil
	}
	data, err := os.ReadFile(paths.At(p.root, path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if folder, _ := installed.Starts(string(data)); err == nil && folder != "" && folder != prefix {
		return exit.As(exit.Refused, &hinted{
			fmt.Errorf("%s starts programs below %s, and this is the program of %s", path, folder, prefix), []string{folder + "/current/unboundedctl uninstall"},
		})
	}
	return err
}

func (i installation) aboutConfig() string {
	if i.config == nil {
		return "  kept     " + paths.Config + "\n"
	}
	return "           " + strings.Join(i.config, ", ") + "\n"
}

// folders are those that held what was removed and can be ours, inner before outer. Those of the system are not.
func folders(i installation) []string {
	all := []string{i.prefix, paths.ConfigDir, filepath.Dir(paths.ConfigDir)}
	for _, path := range slices.Concat(i.rest, []string{i.self}) {
		for dir := filepath.Dir(path); strings.HasPrefix(dir, i.prefix+"/"); dir = filepath.Dir(dir) {
			all = append(all, dir)
		}
		if dir := filepath.Dir(path); strings.HasPrefix(dir, "/usr/local/lib/systemd/") { // the catalog
			all = append(all, dir, filepath.Dir(dir))
		}
		if dir := filepath.Dir(path); strings.HasPrefix(dir, paths.SystemdDir+"/unbounded-") { // of drop-ins
			all = append(all, dir)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	slices.SortStableFunc(all, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	return all
}
