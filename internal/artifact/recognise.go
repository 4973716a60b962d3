package artifact

import (
	"debug/buildinfo"
	"path"
	"strings"

	"unbounded/internal/inventory"
	"unbounded/internal/tree"
)

// recognise finds the programs of an archive in the image itself, by what the Go linker
// wrote into them; they are as trustworthy as the image. Nothing is run. Bare programs
// are compared by digest instead, and so is everything that is pinned.
func recognise(root *tree.Root, item Item) (inventory.Binary, bool) {
	result := inventory.Binary{Name: item.Name, Version: item.Version}
	if item.archive == nil || item.SHA256 != "" {
		return result, false
	}
	for _, name := range item.archive.required {
		at := path.Join(item.Dest, name)
		if !builtFrom(root, at, item.archive.module, item.Version) {
			return result, false
		}
		file, err := inventory.Measure(root, at)
		if err != nil || file.Mode.Perm()&0o111 == 0 {
			return result, false
		}
		result.Files = append(result.Files, file)
	}
	return result, true
}

func builtFrom(root *tree.Root, name, module, version string) bool {
	file, err := root.Open(name)
	if err != nil {
		return false
	}
	defer file.Close()
	info, err := buildinfo.Read(file)
	if err != nil || (info.Main.Path != module && !strings.HasPrefix(info.Main.Path, module+"/")) {
		return false
	}
	if info.Main.Version == "v"+version {
		return true
	}
	for _, setting := range info.Settings {
		if setting.Key != "-ldflags" {
			continue
		}
		for _, flag := range strings.FieldsFunc(setting.Value, func(r rune) bool { return r == ' ' || r == '\'' || r == '"' }) {
			_, value, found := strings.Cut(flag, "ersion=") // version=, buildVersion=, Version=
			if found && strings.TrimPrefix(value, "v") == version {
				return true
			}
		}
	}
	return false
}
