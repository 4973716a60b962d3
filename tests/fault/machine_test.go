//go:build host || fault

package fault

import (
	"testing"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

// What stands for containerd and kubelet in a machine.
const (
	containerd = `[Service]
ExecStart=/usr/bin/socat UNIX-LISTEN:/run/containerd/containerd.sock,fork,unlink-early SYSTEM:true
RuntimeDirectory=containerd
[Install]
WantedBy=multi-user.target
`
	kubelet = `[Unit]
ConditionPathExists=` + paths.Built + `
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
`
)

// machineTable are the helpers that need a machine that boots.
func machineTable() []row {
	machine := running{paths.MachineUnit(slot), "machines.target"}
	roots := []string{"/etc/systemd", "/var/lib/unbounded", "/run/unbounded", paths.Tree(slot) + paths.SystemdDir}
	inner := innerUnits{paths.ContainerdUnit, paths.KubeletUnit}
	return []row{
		{
			helper: "machine", verb: []string{"converge", slot}, what: "that is off", roots: roots,
			aspects: []aspect{machine, inner}, sample: 2, between: []string{paths.Restart + "/**"},
		},
		{
			helper: "machine", verb: []string{"converge", slot}, what: "with services to restart", roots: roots,
			aspects: []aspect{machine, inner}, sample: 2, between: []string{paths.Restart + "/**"},
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				s.plain(t, "machine", "converge", slot)
				s.MustRun(t, "mkdir -p "+paths.Restart+" && : >"+paths.Restart+"/kube1.containerd && : >"+paths.Restart+"/kube1.kubelet")
			},
		},
		{
			helper: "machine", verb: []string{"remove"}, roots: roots, aspects: []aspect{machine}, sample: 2,
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				s.plain(t, "machine", "converge", slot)
				s.phase(t, "resetting")
			},
		},
	}
}

// innerUnits are units in the machine.
type innerUnits []string

func (a innerUnits) look(t *testing.T, s *scene) string {
	t.Helper()
	line := "systemctl is-active --quiet " + paths.MachineUnit(slot) + " && systemctl -M " + slot + " show -p Id,ActiveState"
	for _, unit := range a {
		line += " " + unit
	}
	return s.Run(t, line).Out
}

// set has nothing to do: they are as the machine has started them.
func (innerUnits) set(*testing.T, *scene, string, string) {}

// machineScene is a host with a machine whose services are stubs.
func machineScene(t *testing.T) *scene {
	t.Helper()
	node, err := host.Artefact("node-tree")
	if err != nil {
		t.Fatal(err)
	}
	s := newScene(t, nil, "--bind-ro="+node+":/mnt")
	tree := paths.Tree(slot)
	s.MustRun(t, "cp -a /mnt "+tree+" && rm -f "+tree+"/etc/machine-id")
	s.plain(t, "node", "converge", slot)
	s.WriteFile(t, tree+paths.SystemdDir+"/containerd.service", host.File{Content: containerd})
	s.WriteFile(t, tree+paths.SystemdDir+"/kubelet.service", host.File{Content: kubelet})
	s.MustRun(t, "systemctl daemon-reload")
	s.all = []string{"/etc", "/var/lib/unbounded", "/run/unbounded", tree + paths.SystemdDir}
	if s.base, err = s.world(s.all).take(); err != nil {
		t.Fatal(err)
	}
	return s
}
