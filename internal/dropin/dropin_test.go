package dropin

import (
	"strings"
	"testing"

	"unbounded/internal/systemd"
)

func TestContent(t *testing.T) {
	for _, test := range []struct{ unit, more, want string }{
		{"docker.service", "", "\nConditionPathExists=!/etc/systemd/system/docker.service.d/00-unbounded.conf\n"},
		{`dev-sda\x2d2.swap`, "", `ConditionPathExists=!/etc/systemd/system/dev-sda\x2d2.swap.d/00-unbounded.conf`},
		{"odd%i.swap", "", "ConditionPathExists=!/etc/systemd/system/odd%%i.swap.d/00-unbounded.conf"},
		{"nftables.service", Firewall, "\nExecStop=\n"},
	} {
		if got := Content(test.unit, test.more); !strings.Contains(got, test.want) {
			t.Errorf("Content(%q) = %q, want %q in it", test.unit, got, test.want)
		}
	}
}

func TestStale(t *testing.T) {
	mine := []string{"/etc/systemd/system/docker.service.d/00-unbounded.conf"}
	for _, test := range []struct {
		name string
		have systemd.Properties
		want bool
	}{
		{"not there", systemd.Properties{LoadState: "not-found"}, false},
		{"masked", systemd.Properties{LoadState: "masked"}, false},
		{"in effect", systemd.Properties{LoadState: "loaded", DropInPaths: mine}, false},
		{"edited", systemd.Properties{LoadState: "loaded", DropInPaths: mine, NeedDaemonReload: true}, true},
		{"in effect by another name of the unit", systemd.Properties{
			LoadState: "loaded", DropInPaths: []string{"/etc/systemd/system/alias.service.d/00-unbounded.conf"},
		}, false},
		{"not seen yet", systemd.Properties{LoadState: "loaded"}, true},
	} {
		if got := Stale(test.have); got != test.want {
			t.Errorf("%s: Stale = %v, want %v", test.name, got, test.want)
		}
	}
}
