package compare

import "unbounded/internal/paths"

// Exclusion is what may differ between two looks at the same host.
type Exclusion struct {
	Class  string // Files, or a section of collect.sh
	Object string // a pattern as in path.Match; of files, all below it too
	New    bool   // it may only be there that was not: a change of one that was there counts
	Reason string
}

// Exclusions are all that the comparison leaves out.
func Exclusions() []Exclusion {
	return []Exclusion{
		{Class: Files, Object: "/proc", Reason: "state of the kernel; what matters of it is looked at by class"},
		{Class: Files, Object: "/sys", Reason: "state of the kernel; what matters of it is looked at by class"},

		{Class: Files, Object: "/dev/disk", Reason: "names of disks, which udev makes as they come and go"},
		{Class: Files, Object: "/var/log", Reason: "logs"},
		{Class: Files, Object: "/run/utmp", Reason: "logs"},
		{Class: Files, Object: "/run/udev", Reason: "runtime folder of systemd: what udev knows of devices"},
		{Class: Files, Object: "/run/systemd/journal", Reason: "runtime folder of systemd: open streams to the journal"},
		{Class: Files, Object: "/run/systemd/units", Reason: "runtime folder of systemd: invocations of units"},
		{Class: Files, Object: "/tmp/systemd-private-*", Reason: "runtime folder of systemd: PrivateTmp= of services that run"},
		{Class: Files, Object: "/var/tmp/systemd-private-*", Reason: "runtime folder of systemd: PrivateTmp= of services that run"},
		{Class: Files, Object: "/run/systemd/propagate", Reason: "runtime folder of systemd: of services that run in a mount namespace"},
		{Class: Files, Object: "/run/systemd/machine", Reason: "runtime folder of systemd: sockets of machined"},
		{Class: Files, Object: "/run/systemd/userdb/io.systemd.Machine", Reason: "runtime folder of systemd: sockets of machined"},
		{Class: Files, Object: "/run/systemd/nspawn", New: true, Reason: "runtime folder of systemd: made for the first machine, and kept empty"},
		{Class: Files, Object: "/run/systemd/nspawn/*", New: true, Reason: "runtime folder of systemd: made for the first machine, and kept empty"},
		{Class: Files, Object: "/run/systemd/transient", New: true, Reason: "runtime folder of systemd: made for the first transient unit, and kept"},
		{Class: Files, Object: "/run/systemd/namespace-*", New: true, Reason: "runtime folder of systemd: left by a service that is stopped while its mount namespace is made"},
		{Class: Files, Object: "/run/systemd/namespace-*/*", New: true, Reason: "runtime folder of systemd: left by a service that is stopped while its mount namespace is made"},
		{Class: Files, Object: paths.Lock, New: true, Reason: "a lock: whoever removes one may part those who wait for it; gone with the boot"},
		{Class: Files, Object: paths.RecordLock, New: true, Reason: "a lock: whoever removes one may part those who wait for it; gone with the boot"},
		{Class: Files, Object: paths.Run, New: true, Reason: "the folder of that lock"},

		{Class: "sysctls", Object: "net/bridge/*", New: true, Reason: "of the module br_netfilter, which stays loaded"},
		{Class: "sysctls", Object: "fs/*-state", Reason: "a count that moves by itself"},
		{Class: "sysctls", Object: "fs/*-nr", Reason: "a count that moves by itself"},
		{Class: "sysctls", Object: "fs/quota/syncs", Reason: "a count that moves by itself"},
		{Class: "sysctls", Object: "net/netfilter/nf_conntrack_count", Reason: "a count that moves by itself"},
		{Class: "sysctls", Object: "kernel/pty/nr", Reason: "a count that moves by itself"},
		{Class: "sysctls", Object: "kernel/ns_last_pid", Reason: "a count that moves by itself"},
		{Class: "sysctls", Object: "kernel/random/*", Reason: "random, or of this boot"},

		{Class: "units", Object: "systemd-machined.service", Reason: "starts when somebody asks it and ends when it is idle"},
		{Class: "units", Object: "*.device", Reason: "of the kernel's devices; links are looked at by themselves"},
		{Class: "units", Object: "machine.slice", Reason: "systemd makes it for the first machine and keeps it"},
		{Class: "units", Object: `system-unbounded\\x2d*.slice`, Reason: "systemd makes it for the first instance of a template and keeps it"},
		{Class: "units", Object: "ldconfig.service", Reason: "runs at the first boot after an update only"},
		{Class: "units", Object: "systemd-journal-catalog-update.service", Reason: "runs at the first boot after an update only"},
		{Class: "units", Object: "systemd-sysusers.service", Reason: "runs at the first boot after an update only"},
		{Class: "units", Object: "systemd-update-done.service", Reason: "runs at the first boot after an update only"},

		{Class: "processes", Object: "init.scope *", Reason: "the comparison itself runs there"},
		{Class: "processes", Object: "* (*", Reason: "a helper process of a service that comes and goes"},
		{Class: "processes", Object: "systemd-machined.service *", Reason: "starts when somebody asks it and ends when it is idle"},
	}
}
