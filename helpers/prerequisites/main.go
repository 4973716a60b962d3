// Command prerequisites makes the programs of the host exist that later stages, and the machine's unit, run.
//
// It runs as unbounded-prerequisites.service. On hosts with a package manager it installs the packages of
// those that are missing, and of no others. On image-based hosts (no package manager, or a read-only /usr)
// it installs nothing, and names what the image lacks and what would provide it.
//
// It writes nothing itself; the package manager does. It leaves installed packages as they are.
package main

import "unbounded/internal/stage"

func main() { stage.Main("unbounded-prerequisites", converge, nil) }
