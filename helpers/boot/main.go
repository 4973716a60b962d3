// Command boot starts the bootstrap of this host, again and again until it has succeeded or was refused.
//
// It runs as unbounded-boot.service, at boot and only while the installation is not complete. After
// a failure it waits 10 s, then twice as long each time, at most 5 min, and says so in the
// unit's status. When a stage refuses (exit status 78), a retry cannot help: it ends with
// 78 too and leaves the host to its operator. It writes nothing and takes no lock.
package main

import (
	"context"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"unbounded/internal/exit"
	"unbounded/internal/journal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	log := journal.New("unbounded-boot")
	b := boot{log: log, target: &target{root: "/"}, sleep: sleep, random: rand.Float64}
	err := b.run(ctx)
	if err != nil && ctx.Err() == nil {
		log.Error(journal.Refused, err)
	}
	stop()
	os.Exit(int(exit.Of(err)))
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	ctx, done := context.WithTimeout(ctx, d)
	defer done()
	<-ctx.Done()
}
