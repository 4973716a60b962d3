package host

import "testing"

func TestExcluded(t *testing.T) {
	patterns := []string{"/run", "/var/lib/machines/*/run"}
	tests := []struct {
		name string
		want bool
	}{
		{"/run", true},
		{"/runner", false},
		{"/var/run", false},
		{"/var/lib/machines/kube1/run", true},
		{"/var/lib/machines/kube1/etc", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := excluded(test.name, patterns); got != test.want {
				t.Errorf("excluded(%q) = %v, want %v", test.name, got, test.want)
			}
		})
	}
}
