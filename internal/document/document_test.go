package document_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"unbounded/internal/document"
)

type shape struct {
	Name  string
	Inner struct {
		Flag bool
		List []struct{ Count int }
	}
	Labels  map[string]string
	Free    map[string]any
	Raw     json.RawMessage
	Pointer *struct {
		Tagged string `json:"tagged,omitempty"`
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, document string
		unknown        []string
		mismatches     []string
	}{
		{name: "fits", document: `{"Name":"a","Inner":{"Flag":true,"List":[{"Count":1}]},"Labels":{"x":"y"},"Free":{"a":[1,{}]},"Raw":[{}],"Pointer":{"tagged":"t"}}`},
		{name: "null fits everything", document: `{"Name":null,"Inner":null,"Labels":null,"Pointer":null}`},
		{name: "case does not matter", document: `{"NAME":"a","inner":{"fLaG":false},"pointer":{"TAGGED":"t"}}`},
		{
			name:     "unknown at any depth",
			document: `{"New":{"a":[1]},"Inner":{"List":[{"Count":1},{"Other":{}}]},"Pointer":{"x y":1},"\n":0}`,
			unknown:  []string{"New", "Inner.List[1].Other", `Pointer["x y"]`, `["\n"]`},
		},
		{
			name:       "wrong kinds, all of them",
			document:   `{"Name":1,"Inner":{"Flag":"yes","List":{"a":[[]]}},"Labels":{"a":1,"b":"c","d":[]},"Free":[],"Pointer":true,"Name":{}}`,
			mismatches: []string{"Name: a number, not a string", "Inner.Flag: a string, not true or false", "Inner.List: an object, not a list", `Labels["a"]: a number, not a string`, `Labels["d"]: a list, not a string`, "Free: a list, not an object", "Pointer: true or false, not an object", "Name: an object, not a string"},
		},
		{name: "repeated keys are all looked at", document: `{"Inner":{"X":1},"Inner":{"Y":2}}`, unknown: []string{"Inner.X", "Inner.Y"}},
		{name: "long keys are cut", document: `{"` + strings.Repeat("k", 200) + `":1}`, unknown: []string{strings.Repeat("k", 80) + "…"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			unknown, mismatches, err := document.Compare([]byte(test.document), new(shape))
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, m := range mismatches {
				lines = append(lines, m.Path+": "+m.Have+", not "+m.Want)
			}
			if diff := cmp.Diff(test.unknown, unknown); diff != "" {
				t.Errorf("unknown (-want +have):\n%s", diff)
			}
			if diff := cmp.Diff(test.mismatches, lines); diff != "" {
				t.Errorf("mismatches (-want +have):\n%s", diff)
			}
		})
	}
}
