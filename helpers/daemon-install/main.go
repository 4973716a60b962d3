// Command daemon-install takes the daemon off a host.
//
// The verb remove runs as unbounded-reset-daemon.service. It stops and disables units and removes their files,
// drop-ins and links in /etc/systemd/system and /run/systemd/system: first of those that could start the daemon, or an
// installation, again (recovery, and the unit with which Ignition brought the public agent), then of the daemon.
// The recovery scripts go last.
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
