// Package paths names every program, unit and file of the product, once, and those of the host that more than
// one package has to name.
//
// Paths are absolute, as on a real host. A test that works below another root
// joins them with At.
package paths

import "path/filepath"

// Files of an installation (design: files on the host).
const (
	Config       = "/etc/unbounded/agent/config.json"
	ConfigDir    = "/etc/unbounded/agent"
	Credential   = "unbounded.config" // name of the systemd credential that Config may come from instead
	RegistryAuth = "/etc/unbounded/agent/registry-auth.json"
	Admitted     = "/run/unbounded/admitted.json"
	Run          = "/run/unbounded"
	RunSlot      = "/run/unbounded/run"     // RunSlot/<slot> lets that slot run in this boot
	Restart      = "/run/unbounded/restart" // Restart/<slot>.<service>: files changed, not yet restarted
	LastFailure  = "/run/unbounded/last-failure.json"
	RecordLock   = "/run/unbounded/record.lock"
	Lock         = "/run/unbounded-agent-install.lock"
	State        = "/var/lib/unbounded/agent"
	Record       = "/var/lib/unbounded/agent/install-state.json"
	Complete     = "/var/lib/unbounded/agent/complete"
	Before       = "/var/lib/unbounded/agent/before"
	Content      = "/var/lib/unbounded/oci"
	Machines     = "/var/lib/machines"
	NspawnDir    = "/etc/systemd/nspawn"
	SystemdDir   = "/etc/systemd/system"
	BPF          = "/run/bpffs"
)

// Manifest is the file below the prefix that says what an installer placed: one absolute path a line.
const Manifest = "manifest"

// Files inside the tree of a machine.
const (
	Kubelet             = "/var/lib/kubelet"
	MultiUserWants      = SystemdDir + "/multi-user.target.wants"
	ContainerdSocket    = "/run/containerd/containerd.sock"
	Built               = "/etc/unbounded/built.json"
	BuiltBefore         = "/etc/unbounded/built-before.json" // Built, while the node stage changes what it was built from
	Kubeconfig          = Kubelet + "/kubeconfig"
	BootstrapKubeconfig = Kubelet + "/bootstrap-kubeconfig"
	KubeletConfig       = Kubelet + "/config.yaml"
)

// Units.
const (
	AdmitUnit         = "unbounded-admit.service"
	PreflightUnit     = "unbounded-preflight.service"
	PrerequisitesUnit = "unbounded-prerequisites.service"
	KernelUnit        = "unbounded-kernel.service"
	ConflictsUnit     = "unbounded-conflicts.service"
	NftablesUnit      = "unbounded-nftables.service"
	CompleteUnit      = "unbounded-complete.service"
	VerifyUnit        = "unbounded-verify.service"
	NetworkUnit       = "unbounded-network.service"
	FailedUnit        = "unbounded-failed.service"
	BootUnit          = "unbounded-boot.service"
	BootCompleteUnit  = "unbounded-boot-complete.service"
	Target            = "unbounded-bootstrap.target"
	AutostartTarget   = "unbounded-autostart.target" // of the system extension: it is kept up, and wants BootUnit
	ResetTarget       = "unbounded-reset.target"
	DaemonUnit        = "unbounded-agent-daemon.service"
	RecoveryUnit      = "unbounded-agent-daemon-recovery.service"
)

// Units of a reset, in the order in which they run.
const (
	ResetBeginUnit    = "unbounded-reset-begin.service"
	ResetDaemonUnit   = "unbounded-reset-daemon.service"
	ResetMachinesUnit = "unbounded-reset-machines.service"
	ResetNetworkUnit  = "unbounded-reset-network.service"
	ResetNspawnUnit   = "unbounded-reset-nspawn.service"
	ResetTreesUnit    = "unbounded-reset-trees.service"
	ResetHostUnit     = "unbounded-reset-host.service"
	ResetStateUnit    = "unbounded-reset-state.service"
	ResetReleaseUnit  = "unbounded-reset-release.service"
)

// What is not ours: the host's, and in the machine the units of a node.
const (
	MachineID         = "/etc/machine-id"
	SystemCredentials = "/run/credentials/@system" // those that the host was booted with
	SystemBus         = "/run/dbus/system_bus_socket"
	MachinedUnit      = "systemd-machined.service"
	NetworkdUnit      = "systemd-networkd.service"
	KubeletUnit       = "kubelet.service"
	ContainerdUnit    = "containerd.service"
)

// Firewalls are the units of distributions that load packet-filter rules, at boot and when they are reloaded. Most
// flush those of others when they do.
func Firewalls() []string {
	return []string{
		"nftables.service", "iptables.service", "ip6tables.service", "firewalld.service", "ufw.service",
		"netfilter-persistent.service",
	}
}

// DefaultRoot is where programs are installed unless the install chose another prefix;
// LegacyRoot is what a record without a prefix means (records of the public agent).
const (
	DefaultRoot = "/opt/unbounded"
	LegacyRoot  = "/usr/local"
)

// Slots are the two machines a node can run in; the first is where an installation starts.
func Slots() [2]string { return [2]string{"kube1", "kube2"} }

// IsSlot tells whether name is one of Slots.
func IsSlot(name string) bool { return name == "kube1" || name == "kube2" }

// StageUnits are all stages of the target, in start order, for slot.
func StageUnits(slot string) []string {
	return []string{
		AdmitUnit, PreflightUnit, PrerequisitesUnit, KernelUnit, ConflictsUnit, NftablesUnit, NetworkUnit,
		RootfsUnit(slot), NodeUnit(slot), MachineStageUnit(slot), JoinUnit(slot), CompleteUnit, VerifyUnit,
	}
}

// ResetUnits are all stages of a reset, in the order in which they run.
func ResetUnits() []string {
	return []string{
		ResetBeginUnit, ResetDaemonUnit, ResetMachinesUnit, ResetNetworkUnit, ResetNspawnUnit,
		ResetTreesUnit, ResetHostUnit, ResetStateUnit, ResetReleaseUnit,
	}
}

// RootfsUnit is the stage that makes the tree of slot.
func RootfsUnit(slot string) string { return "unbounded-rootfs@" + slot + ".service" }

// NodeUnit is the stage that writes the node's files of slot.
func NodeUnit(slot string) string { return "unbounded-node@" + slot + ".service" }

// MachineStageUnit is the stage that starts slot.
func MachineStageUnit(slot string) string { return "unbounded-machine@" + slot + ".service" }

// JoinUnit is the stage that waits for the node of slot.
func JoinUnit(slot string) string { return "unbounded-join@" + slot + ".service" }

// MachineUnit is systemd's own unit that runs slot.
func MachineUnit(slot string) string { return "systemd-nspawn@" + slot + ".service" }

// Tree is the root of slot's tree.
func Tree(slot string) string { return Machines + "/" + slot }

// Partial is the tree of slot while it is being built.
func Partial(slot string) string { return Machines + "/." + slot + ".partial" }

// Removing is the tree of slot while it is being removed.
func Removing(slot string) string { return Machines + "/." + slot + ".removing" }

// Nspawn is the settings file of slot.
func Nspawn(slot string) string { return NspawnDir + "/" + slot + ".nspawn" }

// DropIn is the folder of drop-ins for slot's unit; its file is DropInFile.
func DropIn(slot string) string { return SystemdDir + "/" + MachineUnit(slot) + ".d" }

// DropInFile orders and conditions slot's unit. The name is the public agent's.
func DropInFile(slot string) string { return DropIn(slot) + "/override.conf" }

// BPFMount is the mount unit of slot's BPF file system; its name is the escaped path of the mount.
func BPFMount(slot string) string { return SystemdDir + "/run-bpffs-" + slot + ".mount" }

// Applied is the configuration that the running node of slot was built from.
func Applied(slot string) string { return ConfigDir + "/" + slot + "-applied-config.json" }

// Active is there while the node runs in slot.
func Active(slot string) string { return State + "/active." + slot }

// ConditionDropIn keeps a unit of the host from running, for as long as the file is there.
func ConditionDropIn(unit string) string {
	return SystemdDir + "/" + unit + ".d/00-unbounded.conf"
}

// HeldAtBoot keeps BootUnit from starting at boot where it cannot be disabled: a system extension starts it.
const HeldAtBoot = SystemdDir + "/" + BootUnit + ".d/10-reset.conf"

// At is path below root; root "" or "/" is the host itself.
func At(root, path string) string {
	if root == "" || root == "/" {
		return path
	}
	return filepath.Join(root, path)
}
