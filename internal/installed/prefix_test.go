package installed

import "testing"

func TestPrefix(t *testing.T) {
	for _, test := range []struct{ name, program, want string }{
		{"default", "/opt/unbounded/slots/blue/unbounded-admission", "/opt/unbounded"},
		{"other prefix", "/srv/a b/slots/green/x", "/srv/a b"},
		{"not installed", "/work/bin/unbounded-admission", ""},
		{"too high", "/x", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, err := PrefixOf(test.program); got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("PrefixOf(%s) = %q, %v, want %q", test.program, got, err, test.want)
			}
		})
	}
}
