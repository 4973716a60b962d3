// Command daemon-install takes the daemon off a host.
//
// The verb remove runs as unbounded-reset-daemon.service. It stops what could start the daemon, or an installation,
// again, before the daemon itself: the unit with which Ignition brought the public agent and the recovery
// unit. Then it disables them and removes their units, drop-ins and links in /etc/systemd/system and
// /run/systemd/system, and the recovery scripts.
//
// The verb forget runs in unbounded-reset-state.service: a daemon that asked for the reset has its
// credential until the machines are gone and the host is restored. It removes
// /etc/unbounded/agent/daemon-controller and /etc/unbounded/agent/agent-upgrade-signal.
//
// Both do the same for the daemon of the public agent, whose names are the same.
package main

import "unbounded/internal/stage"

func main() {
	stage.MainVerbs("unbounded-daemon-install", map[string]stage.Verb{
		"remove": {Needs: stage.Resetting, Do: remove},
		"forget": {Needs: stage.Resetting, Do: forget},
	})
}
