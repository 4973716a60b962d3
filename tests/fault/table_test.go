//go:build host || fault

package fault

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"unbounded/internal/paths"
	"unbounded/tests/host"
)

// state are the folders of admission, completion and reset.
func state() []string {
	return []string{"/var/lib/unbounded", "/run/unbounded", paths.ConfigDir}
}

// kernelParameters are those that the kernel helper sets, and those that they drag along.
func kernelParameters() sysctls {
	return sysctls{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_max*",
		"net/bridge/bridge-nf-call-ip*", "net/ipv4/ip_forward", "net/ipv4/conf/*/src_valid_mark", "net/ipv4/conf/*/rp_filter",
		"net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/accept_redirects",
	}
}

func operatorUnits() running { return running{"docker.service", "nftables.service"} }

// hostTable are the helpers that need a host and nothing in it: those of the bootstrap, then those of reset.
func hostTable() []row {
	filter := row{helper: "nftables", aspects: []aspect{ruleset{}}, loose: []string{paths.Before + "/nftables.json"}}
	return slices.Concat(bootstrapRows(filter), beginRows(), removeRows(filter))
}

func bootstrapRows(filter row) []row {
	return []row{
		{
			helper: "admission", verb: []string{"admit"}, what: "on a fresh host", roots: state(), newID: true,
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				s.MustRun(t, "rm -rf /var/lib/unbounded/agent /run/unbounded/*")
			},
		},
		{
			helper: "admission", verb: []string{"admit"}, what: "on a complete host without marker", roots: state(),
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				s.phase(t, "complete")
				s.WriteFile(t, paths.LastFailure, host.File{Content: "{}"})
			},
		},
		{helper: "admission", verb: []string{"complete"}, roots: state()},
		{helper: "kernel", aspects: []aspect{kernelParameters()}, between: []string{paths.Before + "/kernel.json"}},
		filter,
		{helper: "network", roots: state()},
		{helper: "rootfs", verb: []string{"converge", slot}, what: "from nothing", roots: treeRoots(), loose: inventories(), between: []string{paths.Content + "/**"}},
		{
			helper: "rootfs", verb: []string{"converge", slot}, what: "with programs that are gone", roots: treeRoots(), loose: inventories(),
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				s.plain(t, "rootfs", "converge", slot)
				bin := paths.Tree(slot) + "/usr/local/bin/"
				s.MustRun(t, "rm "+bin+"kubelet && echo x >"+bin+"ctr")
			},
		},
		{helper: "node", verb: []string{"converge", slot}, what: "on a new tree", setup: plantTree, roots: nodeRoots()},
		{
			helper: "node", verb: []string{"converge", slot}, what: "with another configuration", roots: nodeRoots(),
			between: []string{paths.Tree(slot) + paths.Built, paths.Tree(slot) + paths.BuiltBefore},
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				plantTree(t, s)
				s.plain(t, "node", "converge", slot)
				s.MustRun(t, `sed -i 's/10\.96\.0\.10/10.96.0.11/' `+paths.Admitted)
			},
		},
		{helper: "join", verb: []string{"converge", slot}, setup: plantJoined, roots: state()},
		{
			helper: "join", verb: []string{"converge", slot}, what: "after another configuration", roots: state(),
			between: []string{paths.Applied(slot) + ".sha256"}, // a wrong checksum is worse than none
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				plantJoined(t, s)
				s.plain(t, "join", "converge", slot)
				s.MustRun(t, "echo '{\"other\":1}' >"+paths.Tree(slot)+paths.Built)
			},
		},
	}
}

// beginRows are the ways in which a reset can find a host.
func beginRows() []row {
	found := func(what string, newID bool, script string) row {
		return row{
			helper: "reset", verb: []string{"begin"}, what: what, newID: newID,
			roots:   append(state(), paths.SystemdDir),
			aspects: []aspect{running{paths.BootUnit}},
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				s.MustRun(t, "systemctl enable "+paths.BootUnit+" && "+script)
			},
		}
	}
	return []row{
		found("while installing", false, "true"),
		found("when complete", false, `sed -i 's/"installing"/"complete"/' `+paths.Record+" && : >"+paths.Complete),
		found("with a record that is cut off", true, "truncate -s 20 "+paths.Record),
		found("without record", true, "rm "+paths.Record),
		{
			helper: "reset", verb: []string{"release"}, roots: state(), between: []string{paths.Record},
			next: [][]string{{"reset", "begin"}, {"reset", "release"}},
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				s.phase(t, "resetting")
				s.WriteFile(t, paths.Before+"/network.json", host.File{Content: "{}", Mode: 0o600})
			},
		},
	}
}

// conflictRows take longest: each point stops and starts services.
func conflictRows() []row {
	converge := row{helper: "conflicts", aspects: []aspect{operatorUnits(), ruleset{}}, sample: 2}
	remove := converge
	remove.verb, remove.setup = []string{"remove"}, made([]string{"conflicts", "converge"})
	return []row{converge, remove}
}

// made runs helpers and makes the phase resetting.
func made(prepare ...[]string) func(t *testing.T, s *scene) {
	return func(t *testing.T, s *scene) {
		t.Helper()
		for _, args := range prepare {
			s.plain(t, args[0], args[1:]...)
		}
		s.phase(t, "resetting")
	}
}

// removeRows are the verbs that unmake what a stage made. Each starts from what that stage made.
func removeRows(filter row) []row {
	remove := []string{"remove"}
	network := row{
		helper: "network", verb: remove, aspects: []aspect{nodesNetwork{}},
		roots: append(state(), "/etc/wireguard"), between: []string{paths.Before + "/network.json"},
		setup: func(t *testing.T, s *scene) {
			t.Helper()
			made([]string{"network", "converge"})(t, s)
			s.MustRun(t, "mkdir -m 0700 /etc/wireguard; echo "+canary+" >/etc/wireguard/server.priv")
			nodesNetwork{}.set(t, s, "", "")
		},
	}
	unfilter := filter
	unfilter.verb, unfilter.setup = remove, made([]string{"nftables", "converge"})
	return []row{
		network, unfilter,
		{helper: "kernel", verb: remove, setup: made([]string{"kernel", "converge"}), aspects: []aspect{kernelParameters()}, between: []string{paths.Before + "/kernel.json"}},
		{
			helper: "daemon-install", verb: remove, aspects: []aspect{daemonUnits()},
			roots: []string{"/etc/systemd", "/var/lib/unbounded", "/run/unbounded", "/usr/local"},
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				plantDaemon(t, s)
				s.phase(t, "resetting")
			},
		},
		{
			helper: "daemon-install", verb: []string{"forget"}, roots: state(),
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				s.MustRun(t, "mkdir "+paths.ConfigDir+"/daemon-controller && cd "+paths.ConfigDir+" && echo x >agent-upgrade-signal && echo x >daemon-controller/a && echo x >daemon-controller/b")
				s.phase(t, "resetting")
			},
		},
		{
			helper: "legacy", verb: remove, aspects: []aspect{running{"nftables-flush.service"}},
			roots: []string{"/etc/systemd", "/etc/unbounded", "/usr/local", "/var/lib/unbounded", "/run/unbounded"},
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				plantLegacy(t, s)
				s.phase(t, "resetting")
			},
		},
		{
			helper: "rootfs", verb: remove, roots: treeRoots(),
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				s.plain(t, "rootfs", "converge", slot)
				s.MustRun(t, "cp -a "+paths.Tree("kube1")+" "+paths.Partial("kube2")+" && touch /var/lib/machines/.#kube1.lck")
				s.phase(t, "resetting")
			},
		},
		{
			helper: "node", verb: remove, roots: nodeRoots(),
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				plantTree(t, s)
				s.plain(t, "node", "converge", slot)
				s.phase(t, "resetting")
			},
		},
		{
			helper: "join", verb: remove, roots: state(),
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				plantJoined(t, s)
				s.plain(t, "join", "converge", slot)
				s.phase(t, "resetting")
			},
		},
		{
			helper: "admission", verb: remove, roots: state(),
			setup: func(t *testing.T, s *scene) {
				t.Helper()
				s.MustRun(t, ": >"+paths.Complete+" && mkdir -p "+paths.RunSlot+" "+paths.Restart)
				s.phase(t, "resetting")
			},
		},
	}
}

func treeRoots() []string {
	return []string{"/var/lib/machines", "/var/lib/unbounded", "/run/unbounded"}
}

// inventories tell when a tree was made.
func inventories() []string { return []string{"/var/lib/machines/*/etc/unbounded/image.json"} }

func nodeRoots() []string { return append(treeRoots(), "/etc/systemd") }

func daemonUnits() running { return running{paths.DaemonUnit, paths.RecoveryUnit} }

// plantDaemon is a daemon with its recovery, as an installation leaves them.
func plantDaemon(t *testing.T, s *scene) {
	t.Helper()
	for _, unit := range daemonUnits() {
		s.WriteFile(t, paths.SystemdDir+"/"+unit, host.File{Content: "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"})
	}
	s.MustRun(t, "systemctl daemon-reload && systemctl enable --now "+paths.DaemonUnit)
}

// plantLegacy is some of what the public agent leaves.
func plantLegacy(t *testing.T, s *scene) {
	t.Helper()
	const bin = "/usr/local/bin/unbounded-agent"
	program := host.File{Mode: 0o755, Content: "#!/bin/sh\n# built from github.com/Azure/unbounded/cmd/agent\nexec sleep infinity\n"}
	for path, file := range map[string]host.File{
		bin: {Link: bin + "-current"}, bin + "-current": {Link: bin + "-blue"}, bin + "-blue": program, bin + "-green": program,
		paths.SystemdDir + "/nftables-flush.service": {Content: "[Service]\nType=oneshot\nExecStart=/usr/sbin/nft -f /etc/unbounded/kube/nftables-clear.nft\n" +
			"[Install]\nRequiredBy=systemd-nspawn@.service\n"},
		"/etc/unbounded/kube/nftables-clear.nft":    {Content: "flush ruleset\n", Mode: 0o600},
		"/var/lib/unbounded/container-images/a.tar": {Content: "x"},
	} {
		s.WriteFile(t, path, file)
	}
	s.MustRun(t, "systemctl daemon-reload && systemctl enable nftables-flush.service")
}

// plantTree is a tree as the rootfs helper leaves it, as far as the node helper looks.
func plantTree(t *testing.T, s *scene) {
	t.Helper()
	tree := paths.Tree(slot)
	s.MustRun(t, "mkdir -p "+tree+"/etc/systemd/system "+tree+"/usr/local/bin "+tree+"/var/lib "+tree+"/run "+tree+"/opt && echo ID=test >"+tree+"/etc/os-release")
}

// plantJoined is a tree whose kubelet has joined.
func plantJoined(t *testing.T, s *scene) {
	t.Helper()
	plantTree(t, s)
	tree := paths.Tree(slot)
	for path, content := range map[string]string{
		paths.Built: "{\"token\":\"" + canary + "\"}\n", paths.MachineID: guestID + "\n", paths.Kubeconfig: kubeconfigOf(t, s.ca),
	} {
		s.WriteFile(t, tree+path, host.File{Content: content, Mode: 0o600})
	}
}

// hostScene is a host with all that the helpers ask in the network.
func hostScene(t *testing.T) *scene {
	t.Helper()
	s := newScene(t, nil)
	serveTiny(t, s)
	serveNode(t, s)
	return s
}

// TestHelpers runs the table, on several hosts side by side.
func TestHelpers(t *testing.T) {
	var all results
	t.Run("on", func(t *testing.T) {
		runTable(t, &all, "host", hostTable(), hostScene)
		runTable(t, &all, "conflicts", conflictRows(), hostScene)
		runTable(t, &all, "machine", machineTable(), machineScene)
	})
	all.tell(t)
}

// runTable runs the rows that are wanted on one host.
func runTable(t *testing.T, all *results, name string, table []row, boot func(t *testing.T) *scene) {
	t.Helper()
	table = slices.DeleteFunc(table, func(r row) bool { return !wanted(r.name()) })
	if len(table) == 0 {
		return
	}
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		s := boot(t)
		for _, r := range table {
			t.Run(strings.ReplaceAll(r.name(), " ", "_"), func(t *testing.T) {
				got := result{name: r.name(), bad: 1} // what a row that does not get to its end counts
				defer func() { all.add(got) }()
				got = runRow(t, s, r)
			})
		}
		if out := s.Run(t, "journalctl -b --grep "+canary); out.Code == 0 {
			t.Errorf("the journal has a secret: %s", out.Out)
		}
	})
}

// results are those of all rows.
type results struct {
	mu  sync.Mutex
	all []result
}

func (r *results) add(one result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, one)
}

// tell prints what came of all rows. A row without points fails, and so does a table without rows.
func (r *results) tell(t *testing.T) {
	t.Helper()
	total := result{name: "all"}
	var text strings.Builder
	for _, one := range r.all {
		fmt.Fprintln(&text, one)
		total.points, total.bad, total.calls, total.took = total.points+one.points, total.bad+one.bad, total.calls+one.calls, total.took+one.took
		if one.points == 0 {
			t.Errorf("%s has no points", one.name)
		}
	}
	if len(r.all) == 0 {
		t.Error("no row was run")
	}
	fmt.Fprintf(&text, "fault: %d points, %d exceptions\n", total.points, total.bad)
	tell(t, text.String())
}
