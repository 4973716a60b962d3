package host

import (
	"errors"
	"testing"

	"unbounded/internal/check"
)

func TestLabelType(t *testing.T) {
	for label, want := range map[string]string{
		"system_u:object_r:bin_t:s0":                      "bin_t",
		"unconfined_u:object_r:container_file_t:s0:c1,c2": "container_file_t",
		"system_u:object_r:usr_t":                         "usr_t",
		"":                                                "unlabeled_t",
		"rubbish":                                         "",
	} {
		if got := labelType(label); got != want {
			t.Errorf("labelType(%q) = %q, want %q", label, got, want)
		}
	}
}

// There is no SELinux where these tests run: labels and mode are made up.
func TestLabels(t *testing.T) {
	const folder = "/opt/unbounded/slots/blue/"
	enforcing := map[string]string{"/sys/fs/selinux/enforce": "1", folder + "unbounded-boot": "", folder + "unbounded-kernel": ""}
	all := func(kind string) func(string) (string, error) {
		return func(string) (string, error) { return "system_u:object_r:" + kind + ":s0", nil }
	}
	for _, test := range []struct {
		name  string
		files map[string]string
		label func(path string) (string, error)
		want  check.Severity
		parts []string
		count int
	}{
		{name: "no SELinux", files: map[string]string{folder: ""}, label: all("var_lib_t"), want: check.OK},
		{name: "permissive", files: map[string]string{folder: "", "/sys/fs/selinux/enforce": "0\n"}, label: all("var_lib_t"), want: check.OK},
		{name: "below /usr", files: enforcing, label: all("bin_t"), want: check.OK},
		{name: "below /opt", files: enforcing, label: all("usr_t"), want: check.OK},
		{name: "a type of the operator", files: enforcing, label: all("unbounded_exec_t"), want: check.OK},
		{
			name: "data", files: enforcing, label: all("var_lib_t"), want: check.Warning, count: 1,
			parts: []string{"/opt/unbounded/current/unbounded-boot has the SELinux type var_lib_t", "restorecon -RFv /opt/unbounded", "semanage fcontext"},
		},
		{name: "of a container", files: enforcing, label: all("container_var_lib_t"), want: check.Warning, count: 1},
		{name: "none", files: enforcing, label: func(string) (string, error) { return "", nil }, want: check.Warning, parts: []string{"unlabeled_t"}, count: 1},
		{
			name: "one of them", files: enforcing, want: check.Warning, parts: []string{"unbounded-kernel has", "default_t"}, count: 1,
			label: func(path string) (string, error) {
				if path == "/opt/unbounded/current/unbounded-kernel" {
					return "system_u:object_r:default_t:s0", nil
				}
				return "system_u:object_r:usr_t:s0", nil
			},
		},
		{
			name: "cannot be read", files: enforcing, want: check.Warning, parts: []string{"cannot be read: denied"},
			label: func(string) (string, error) { return "", errors.New("denied") }, count: 2,
		},
		{name: "no programs", files: map[string]string{"/sys/fs/selinux/enforce": "1"}, label: all("usr_t"), want: check.Warning, count: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := made(t, test.files, map[string]string{"/opt/unbounded/current": "slots/blue"}, nil)
			h.Label = test.label
			results := look(t, h, "selinux-labels")
			expect(t, results, test.want, test.parts...)
			if test.count > 0 && len(results) != test.count {
				t.Errorf("%d results, want %d: %v", len(results), test.count, results)
			}
		})
	}
	// The attribute itself, where there is none.
	h := made(t, enforcing, nil, nil)
	if got, err := h.label(folder + "unbounded-boot"); got != "" || err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("label = %q, %v, want none", got, err)
	}
}
