package ground

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSet(t *testing.T) {
	tests := []struct {
		name  string
		key   string
		value any
		want  map[string]any // nil: refused
	}{
		{"replace", "a", 2, map[string]any{"a": 2, "b": map[string]any{"c": 1}}},
		{"inside", "b.c", 2, map[string]any{"a": 1, "b": map[string]any{"c": 2}}},
		{"make the way", "x.y.z", 2, map[string]any{"a": 1, "b": map[string]any{"c": 1}, "x": map[string]any{"y": map[string]any{"z": 2}}}},
		{"take away", "b.c", nil, map[string]any{"a": 1, "b": map[string]any{}}},
		{"through a value", "a.b", 2, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			config := map[string]any{"a": 1, "b": map[string]any{"c": 1}}
			err := set(config, test.key, test.value)
			if (err != nil) != (test.want == nil) {
				t.Fatalf("set(%q) = %v", test.key, err)
			}
			if diff := cmp.Diff(test.want, config); err == nil && diff != "" {
				t.Errorf("set(%q): %s", test.key, diff)
			}
		})
	}
}
