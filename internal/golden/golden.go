// Package golden compares what tests make with files in testdata.
//
// `go test ./PACKAGE -update` writes the files anew; look at the difference before you commit it.
package golden

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/durable"
)

// A flag must be known before the test's main parses the command line.
var update = flag.Bool("update", false, "write the golden files anew")

// Check fails t if have is not the content of the file name, relative to the package.
func Check(t *testing.T, name, have string) {
	t.Helper()
	if *update {
		if _, err := durable.Write(name, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatalf("%v; write it with -update", err)
	}
	if diff := cmp.Diff(string(want), have); diff != "" {
		t.Errorf("%s (-want +have):\n%s", name, diff)
	}
}
