package main

import (
	"context"
	"fmt"

	"unbounded/internal/build"
	"unbounded/internal/config"
	"unbounded/internal/durable"
	"unbounded/internal/nspawn"
	"unbounded/internal/paths"
	"unbounded/internal/resolv"
	"unbounded/internal/stage"
	"unbounded/internal/tree"
)

// node is one run over one tree.
type node struct {
	*stage.Env
	tree *tree.Root
	// stop stops kubelet in the machine if the machine runs.
	stop func(ctx context.Context) error
	// step does one change. Tests count them and end the run at each.
	step func(do func() error) error
}

func converge(ctx context.Context, env *stage.Env) error {
	return run(ctx, &node{
		Env:  env,
		stop: func(ctx context.Context) error { return stopKubelet(ctx, env.Slot) },
		step: func(do func() error) error { return do() },
	})
}

func run(ctx context.Context, n *node) (err error) {
	n.tree, err = tree.Open(paths.At(n.Root, paths.Tree(n.Slot)))
	if err != nil {
		return err
	}
	defer n.tree.Close() // only read from

	devices, err := nspawn.Discover(n.Root, n.Config.Devices...)
	if err != nil {
		return fmt.Errorf("look for devices: %w", err)
	}
	for _, node := range devices.Missing {
		n.Log.Warn("the host has no %s (AdditionalHostDevices): the machine starts without it", node)
	}
	names, err := n.resolvers()
	if err != nil {
		return err
	}
	if err := n.writeHost(hostFiles(n.Env, devices)); err != nil {
		return err
	}
	files, err := treeFiles(n.Env, config.ReadHost(n.Root).Hostname, names)
	if err != nil {
		return err
	}
	gone, err := outdated(n.tree, files)
	if err != nil {
		return err
	}
	build := build.Build{
		Root: n.Root, Slot: n.Slot, Tree: n.tree, Config: n.Config, Files: append(files, gone...),
		Log: n.Log, Stop: n.stop, Step: n.step,
	}
	return build.Converge(ctx)
}

func (n *node) resolvers() (resolv.Choice, error) {
	names, err := resolv.Read(n.Root)
	if _, own := n.Config.Kubelet["resolvConf"]; own {
		return names, nil // the node's own file is the operator's concern
	}
	if err == nil && names.Notice != "" {
		n.Log.Notice("%s", names.Notice)
	}
	return names, err
}

// writeHost writes what the machine reads when it starts. A running one is left alone.
func (n *node) writeHost(files []hostFile) error {
	if err := durable.Sweep(paths.At(n.Root, paths.DropIn(n.Slot))); err != nil {
		return err
	}
	if err := n.step(func() error { return note(n.Root) }); err != nil {
		return err
	}
	for _, f := range files {
		path := paths.At(n.Root, f.path)
		if err := durable.SweepFor(path); err != nil {
			return err
		}
		err := n.step(func() error {
			changed, err := durable.Write(path, []byte(f.content), 0o644)
			if changed && err == nil {
				n.Log.Changed(f.path, "written; it is read when the machine starts")
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
