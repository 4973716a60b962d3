package restart

import "testing"

func TestMark(t *testing.T) {
	t.Parallel()
	m := Of(t.TempDir(), "kube1", "kubelet")
	claim := func(want bool) {
		t.Helper()
		if got, err := m.Claim(); err != nil || got != want {
			t.Fatalf("Claim() = %v, %v, want %v", got, err, want)
		}
	}
	pending := func(want bool) {
		t.Helper()
		if got, err := m.Pending(); err != nil || got != want {
			t.Fatalf("Pending() = %v, %v, want %v", got, err, want)
		}
	}
	do := func(f func() error) {
		t.Helper()
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	claim(false)
	pending(false)
	do(m.Done) // nothing claimed is nothing to do

	do(m.Set)
	do(m.Set)
	pending(true)
	claim(true)
	pending(true) // killed here: the next run restarts
	claim(true)
	do(m.Set) // files changed again while the restart runs
	do(m.Done)
	pending(true)
	claim(true)
	do(m.Done)
	claim(false)

	if got, err := Of(t.TempDir(), "kube1", "containerd").Claim(); got || err != nil {
		t.Errorf("Claim() of another = %v, %v", got, err)
	}
}
