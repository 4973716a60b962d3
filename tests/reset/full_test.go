//go:build fault

package reset

const full = true
