// Command boot starts the bootstrap of this host, again and again until it has succeeded or was refused.
//
// It runs as unbounded-boot.service, at boot and only while the installation is not complete. After
// a failure it waits 10 s, then twice as long each time, at most 5 min, and says so in the
// unit's status. When a stage refuses (exit status 78), a retry cannot help: it ends with
// 78 too and leaves the host to its operator.
//
// The verb wait runs as unbounded-boot-complete.service, before boot-complete.target, where somebody has enabled that. It
// ends when unbounded-boot.service has ended, with 0 only if the installation is complete.
//
// It writes nothing and takes no lock.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"unbounded/internal/exit"
	"unbounded/internal/journal"
	"unbounded/internal/proc"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	log := journal.New("unbounded-boot").With(journal.FieldUnit, proc.Unit("/proc", os.Getpid()))
	status := end(ctx, log, run(ctx, log, os.Args[1:]))
	stop()
	os.Exit(int(status))
}

func run(ctx context.Context, log *journal.Log, args []string) error {
	switch {
	case len(args) == 0:
		b := boot{log: log, target: &target{root: "/"}, sleep: sleep, random: rand.Float64}
		return b.run(ctx)
	case len(args) == 1 && args[0] == "wait":
		return wait(ctx, "/", log)
	}
	return exit.As(exit.Usage, errors.New("usage: unbounded-boot [wait]"))
}

// end says why the program ends, and with which status.
func end(ctx context.Context, log *journal.Log, err error) exit.Status {
	switch {
	case err == nil:
	case ctx.Err() != nil:
		log.Error(journal.Canceled, fmt.Errorf("stopped: %w", err))
	case exit.Of(err) == exit.Failed:
		log.Error(journal.Failed, err)
	default:
		log.Error(journal.Refused, err)
	}
	return exit.Of(err)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	ctx, done := context.WithTimeout(ctx, d)
	defer done()
	<-ctx.Done()
}
