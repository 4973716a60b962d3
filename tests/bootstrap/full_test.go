//go:build fault

package bootstrap

// full is whether the host is rebooted after every stage, or after some.
const full = true
