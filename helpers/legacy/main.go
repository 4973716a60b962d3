// Command legacy takes off a host what the public agent leaves on it and an installation of ours does not.
//
// It runs in unbounded-reset-state.service, when neither daemon nor machines are there any more. It
// stops, disables and removes the agent's other units (the flush of the packet filter at every start of a
// machine, the network of LocalDNS, the settings made anew at every boot), and removes its programs, links and scripts
// below /usr/local and /opt/unbounded/agent, /etc/unbounded/kube, its image cache in /var/lib/unbounded and the
// configurations with tokens that its installers leave in /tmp. Files of these names that do not prove
// to be the agent's (package legacy) stay, and the journal says so.
package main

import (
	"context"

	"unbounded/internal/legacy"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
	"unbounded/internal/unitfile"
)

func main() {
	stage.MainVerbs("unbounded-legacy", map[string]stage.Verb{"remove": {Needs: stage.Resetting, Do: remove}})
}

func remove(ctx context.Context, env *stage.Env) error {
	units, err := legacy.Units(env.Root)
	if err != nil {
		return err
	}
	if len(units) > 0 {
		manager, err := systemd.Connect(ctx)
		if err != nil {
			return err
		}
		defer manager.Close()
		if err := unitfile.Retire(ctx, env.Root, manager, env.Log, units...); err != nil {
			return err
		}
	}
	return files(ctx, env)
}
