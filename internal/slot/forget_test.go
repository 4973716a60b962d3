package slot

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"unbounded/internal/journal"
)

// A policy that denies it is no reason not to start.
func TestForgetDenied(t *testing.T) {
	t.Parallel()
	for _, denied := range []error{nil, errors.New("SELinux policy denies access")} {
		var log bytes.Buffer
		Forget(t.Context(), &fake{state: "failed", resetErr: denied}, journal.To(&log), kube1)
		if got := log.String(); (got != "") != (denied != nil) || denied != nil && !strings.Contains(got, "policy denies access, ignoring") {
			t.Errorf("denied: %v: says %q", denied, got)
		}
	}
}
