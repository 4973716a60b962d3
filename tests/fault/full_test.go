//go:build fault

package fault

// full is whether every point is run, or a sample of them.
const full = true
