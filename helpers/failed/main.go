// Command failed says why an attempt failed when the stage that failed could not: it was killed, ran out of
// time or memory, crashed, or could not be executed.
//
// It runs as unbounded-failed.service, which the target starts when a stage has failed. A stage that
// ends by itself has written /run/unbounded/last-failure.json already, and what it wrote in this
// attempt is kept. Nothing is said of stages that somebody stopped, as reset does.
//
// It writes that file, and the same line to the journal. It takes no lock.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"unbounded/internal/exit"
	"unbounded/internal/journal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	log := journal.New("unbounded-failed")
	err := run(ctx, "/", log)
	if err != nil {
		log.Error(journal.Failed, err)
	}
	stop()
	os.Exit(int(exit.Of(err)))
}
