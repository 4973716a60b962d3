package systemd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

type denying struct{ err error }

func (d denying) ResetFailed(context.Context, string) error { return d.err }

// A policy that denies it is no reason not to start.
func TestForgetDenied(t *testing.T) {
	t.Parallel()
	for _, denied := range []error{nil, errors.New("SELinux policy denies access")} {
		got := ""
		warn := func(format string, args ...any) { got += fmt.Sprintf(format, args...) }
		Forget(t.Context(), denying{denied}, warn, "systemd-nspawn@kube1.service")
		if (got != "") != (denied != nil) || denied != nil && !strings.Contains(got, "policy denies access, ignoring") {
			t.Errorf("denied: %v: says %q", denied, got)
		}
	}
}
