package main

import (
	"strings"

	"unbounded/internal/containerd"
	"unbounded/internal/guest"
	"unbounded/internal/kubelet"
	"unbounded/internal/nspawn"
	"unbounded/internal/paths"
	"unbounded/internal/resolv"
	"unbounded/internal/stage"
	"unbounded/internal/system"
	"unbounded/internal/tree"
)

// hostFile is a file outside of the tree.
type hostFile struct {
	path, content string
}

// hostFiles are the machine's files on the host.
func hostFiles(env *stage.Env, devices nspawn.Devices) []hostFile {
	return []hostFile{
		{paths.BPFMount(env.Slot), nspawn.Mount(env.Slot)},
		{paths.DropInFile(env.Slot), nspawn.DropIn(env.Slot, env.Record.Root(), env.Config, devices)},
		{paths.Nspawn(env.Slot), nspawn.Settings(env.Slot, env.Config, devices)},
	}
}

// treeFiles are all files of the node in the tree but built.json, in the order of writing.
func treeFiles(env *stage.Env, hostname string, names resolv.Choice) ([]guest.File, error) {
	files := system.Files(hostname, system.ID(env.Record.InstallID, env.Slot), names)
	files = append(files, containerd.Files(env.Config)...)
	own, err := kubelet.Files(env.Config, names.File)
	return append(files, own...), err
}

// outdated are mirrors of ours that the configuration does not have any more.
func outdated(root *tree.Root, files []guest.File) ([]guest.File, error) {
	wanted := map[string]bool{}
	for _, f := range files {
		wanted[f.Path] = true
	}
	hosts, err := root.Names(containerd.CertsDir)
	if err != nil {
		return nil, err
	}
	var gone []guest.File
	for _, host := range hosts {
		name := containerd.HostsFile(host)
		if wanted[name] {
			continue
		}
		// What cannot be read was not written by us.
		data, err := root.ReadFile(name, 64<<10)
		if err == nil && strings.HasPrefix(string(data), guest.Mark) {
			gone = append(gone, guest.Gone(name))
		}
	}
	return gone, nil
}
