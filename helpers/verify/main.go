// Command verify checks that what the record claims of a complete host is so: programs, units, files, the machine and its services.
//
// It runs as unbounded-verify.service, on every start of a complete host and as the last
// act of a first one. It needs neither image nor downloads nor credentials, asks nothing of
// the network, and writes nothing. All that is wrong is named on one line.
package main

import "unbounded/internal/stage"

func main() { stage.MainComplete("unbounded-verify", verify) }
