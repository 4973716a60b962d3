//go:build (host || cluster) && !fault

package reset

// full is whether all of the tables is run, or a sample of them.
const full = false
