// Command reset begins and ends the reset of a host; what lies between is done by the helpers that made it.
//
// The verb begin runs as unbounded-reset-begin.service. It disables and stops unbounded-boot.service,
// whose retry would install the host again at once, cancels the bootstrap and all its stages through PID 1,
// waits for the lifecycle lock, removes the marker of a complete host and makes the phase of the install
// record resetting: from here on every start is refused. A record that is absent or cannot be read is
// replaced by a synthetic one, and the journal says why. It takes the lock itself, since those that it
// stops hold it.
//
// The verb release runs last, as unbounded-reset-release.service. It proves that the host is clean, has all file
// systems that were written to sync, and removes the install record. If that cannot be made durable the
// record comes back, and the host stays ours. Until then each failure leaves the phase resetting.
//
// It writes /var/lib/unbounded/agent, and nothing else.
package main

import "unbounded/internal/stage"

func main() {
	stage.MainVerbs("unbounded-reset", map[string]stage.Verb{
		"begin":   {Needs: stage.Unlocked, Do: begin},
		"release": {Needs: stage.Resetting, Do: release},
	})
}
