package proc

import "testing"

func TestUnescape(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"plain", "/var/swap", "/var/swap"},
		{"space and backslash", `/swap\040file\134x`, `/swap file\x`},
		{"at the end", `/x\040`, "/x "},
		{"no escape", `/x\9a`, `/x\9a`},
		{"cut off", `/x\04`, `/x\04`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Unescape(test.text); got != test.want {
				t.Errorf("Unescape(%q) = %q, want %q", test.text, got, test.want)
			}
		})
	}
}
