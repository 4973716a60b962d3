package packages

import (
	"fmt"
	"slices"
	"strings"

	"unbounded/internal/osrelease"
	"unbounded/internal/run"
)

// Packages are the packages that have what is missing, each once, in the words of manager.
func Packages(missing []Need, manager string) []string {
	var names []string
	for _, n := range missing {
		if name := n.Package(manager); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// List names what is missing, with the packages that have it in parentheses.
func List(missing []Need, manager string) string {
	var parts []string
	for _, name := range Packages(missing, manager) {
		var needs []string
		for _, n := range missing {
			if n.Package(manager) == name {
				needs = append(needs, n.Name)
			}
		}
		parts = append(parts, fmt.Sprintf("%s (package %s)", strings.Join(needs, ", "), name))
	}
	return strings.Join(parts, ", ")
}

// Remedy is how a host below root on which nothing can be installed gets the packages: that is its distribution's way.
func Remedy(root string, names []string) string {
	const extension = "add a system extension (/var/lib/extensions) that has %s"
	host, all := osrelease.Read(root), strings.Join(names, ", ")
	_, layers := run.Find(root, "rpm-ostree")
	switch {
	case layers || host["ID"] == "fedora" && host["VARIANT_ID"] == "coreos":
		return fmt.Sprintf("`rpm-ostree install %s` and reboot, or boot an image derived with them", strings.Join(names, " "))
	case host["ID"] == "flatcar":
		return fmt.Sprintf("update Flatcar to an image that has %s, or "+extension, all, "them")
	case host["ID"] == "azurelinux":
		return fmt.Sprintf("boot a newer Azure Container Linux image, or "+extension+", a squashfs .raw for the same systemd, and reboot", all)
	}
	return fmt.Sprintf(extension+", or boot another image", all)
}
