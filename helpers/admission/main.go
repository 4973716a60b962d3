// Command admission makes this host ours, or refuses, and marks the end of an installation.
//
// The verb admit runs as unbounded-admit.service, before anything else. It reads the operator's configuration, or
// without that file the service's credential unbounded.config. It writes the install
// record, /run/unbounded/admitted.json and the marker that the conditions of the stages look at,
// and removes the note of an earlier failure; when it refuses it writes nothing.
//
// The verb complete runs as unbounded-complete.service, when the node has joined. It sets
// the record's phase to complete, then writes the marker.
//
// The verb remove runs as unbounded-reset-state.service and takes away what an attempt left of these, but for the record.
//
//	unbounded-admission check [--config FILE] [--prefix DIR]
//
// says, at any time and from anywhere, whether admit would admit this host with the programs below DIR, and with FILE for the
// configuration: exit status 0, or admit's with its reason. It needs root, takes no lock, and writes nothing.
package main

import (
	"os"

	"unbounded/internal/stage"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "check" {
		os.Exit(int(runCheck(os.Args[2:], os.Stdout, os.Stderr)))
	}
	stage.MainVerbs("unbounded-admission", map[string]stage.Verb{
		"admit":    {Needs: stage.LockOnly, Do: admit(os.Getenv("CREDENTIALS_DIRECTORY"))},
		"complete": {Needs: stage.LockOnly, Do: complete},
		"remove":   {Needs: stage.Resetting, Do: remove},
	})
}
