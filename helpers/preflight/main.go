// Command preflight checks this host, its configuration and what it needs from elsewhere, before anything is changed.
//
// The verb converge runs as unbounded-preflight.service. It waits, bounded, for a network
// and for servers that are not there yet; unit status says for which. Warnings go to the
// journal; any error that the configuration does not ignore (Preflight.IgnoreErrors) fails the stage,
// all of them on one line.
//
//	unbounded-preflight check [--config FILE] [--output text|json] [--ignore NAME,...|all] [--fail-on-warnings]
//
// looks once, at any time, and prints the report: exit status 0 is well, 78 that a retry cannot
// help, otherwise 1. It takes no lock and needs no install record.
//
// It writes nothing. It is longer than other helpers because it is a command too.
package main

import (
	"os"
	"time"

	"unbounded/internal/stage"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "check" {
		os.Exit(int(runCheck(os.Args[2:], os.Getenv("UNBOUNDED_AGENT_CONFIG_FILE"), os.Getenv("CREDENTIALS_DIRECTORY"), os.Stdout, os.Stderr)))
	}
	patience, err := time.ParseDuration(os.Getenv("UNBOUNDED_PREFLIGHT_WAIT"))
	if err != nil {
		patience = 2 * time.Minute
	}
	stage.Main("unbounded-preflight", stageCheck(patience), nil)
}
