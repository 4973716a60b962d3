package host

import (
	"context"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"unbounded/internal/check"
	"unbounded/internal/paths"
)

// ofData tells whether files of this SELinux type are data that PID 1 does not execute by the policies of the distributions.
// Programs get such a type when they are placed below a folder that has it, or by somebody who knows no labels. A type that
// is not here may be one that the operator has made for it.
func ofData(kind string) bool {
	switch kind {
	case "admin_home_t", "container_file_t", "container_var_lib_t", "default_t", "etc_t", "file_t", "home_root_t", "mnt_t", "root_t",
		"tmp_t", "unlabeled_t", "user_home_dir_t", "user_home_t", "user_tmp_t", "var_lib_t", "var_log_t", "var_run_t", "var_t":
		return true
	}
	return false
}

// labelType is the type of a label, user:role:type:level; "unlabeled_t", as the kernel takes it, of a file without one.
func labelType(label string) string {
	if label == "" {
		return "unlabeled_t"
	}
	if fields := strings.SplitN(label, ":", 4); len(fields) > 2 {
		return fields[2]
	}
	return ""
}

// labels looks whether PID 1 may execute our programs, where SELinux decides that. The shell of an operator usually may, so
// that they run by hand proves nothing.
func (h *Host) labels(context.Context) []check.Result {
	const target = "SELinux"
	if enforce, err := os.ReadFile(h.at("/sys/fs/selinux/enforce")); err != nil || strings.TrimSpace(string(enforce)) != "1" {
		return one(check.Pass(target, "is not enforcing"))
	}
	folder := h.Prefix + "/current"
	programs, err := os.ReadDir(h.at(folder))
	if err != nil {
		return one(check.Warn(target, "the labels of our programs cannot be looked at: %v", err))
	}
	var results []check.Result
	told := map[string]bool{}
	for _, program := range programs {
		path := folder + "/" + program.Name()
		label, err := h.label(path)
		if err != nil {
			results = append(results, check.Warn(path, "its label cannot be read: %v", err))
			continue
		}
		if kind := labelType(label); ofData(kind) && !told[kind] { // one of each: usually all have the same
			told[kind] = true
			results = append(results, check.Warn(path, "%s has the SELinux type %s, which systemd may not execute: its unit would fail with status 203", path, kind).
				Fix("restorecon -RFv %s, and if that changes nothing first semanage fcontext -a -t bin_t '%s(/.*)?'", h.Prefix, h.Prefix))
		}
	}
	if len(results) > 0 {
		return results
	}
	return one(check.Pass(target, "systemd may execute our programs"))
}

// label is the SELinux label of the file that path leads to; "" if it has none.
func (h *Host) label(path string) (string, error) {
	if h.Label != nil {
		return h.Label(path)
	}
	value := make([]byte, 4096)
	size, err := unix.Getxattr(paths.At(h.Root, path), "security.selinux", value)
	if errors.Is(err, unix.ENODATA) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(value[:size]), "\x00"), nil
}
