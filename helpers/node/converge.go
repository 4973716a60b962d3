package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"unbounded/internal/config"
	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/guest"
	"unbounded/internal/kubelet"
	"unbounded/internal/nspawn"
	"unbounded/internal/paths"
	"unbounded/internal/resolv"
	"unbounded/internal/restart"
	"unbounded/internal/stage"
	"unbounded/internal/tree"
)

// maxBuilt is more than any configuration has.
const maxBuilt = 2 << 20

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
	return n.writeTree(ctx, append(files, gone...))
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
	for _, f := range files {
		err := n.step(func() error {
			changed, err := durable.Write(paths.At(n.Root, f.path), []byte(f.content), 0o644)
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

// writeTree brings the tree's files to what they should be, and built.json to what the node is
// built from. See the package comment for the order.
func (n *node) writeTree(ctx context.Context, files []guest.File) error {
	if err := n.sweep(files); err != nil {
		return err
	}
	changes, err := guest.Plan(n.tree, files)
	if err != nil {
		return err
	}
	joined, err := n.joined(files)
	if err != nil {
		return err
	}
	built, before, err := n.read()
	if err != nil {
		return err
	}
	if !joined && (len(changes) > 0 || string(built) != string(n.Config.Applied)) {
		return n.rebuild(ctx, files, built)
	}
	if joined {
		if err := n.settle(built, before); err != nil {
			return err
		}
		if err := n.sameNode(); err != nil {
			return err
		}
	}
	return errors.Join(n.apply(changes), n.forget(before))
}

// rebuild changes the files of a node that has not joined.
func (n *node) rebuild(ctx context.Context, files []guest.File, built []byte) error {
	// Without built.json no kubelet starts any more; the one that runs is stopped then. If it has
	// joined at the last moment, built.json is what it joined with, and comes back.
	if built != nil {
		before := guest.Private(paths.BuiltBefore, built)
		if err := n.step(func() error { return guest.Apply(n.tree, before) }); err != nil {
			return err
		}
		if err := n.step(func() error { return n.tree.Unlink(paths.Built) }); err != nil {
			return err
		}
	}
	if err := n.stop(ctx); err != nil {
		return fmt.Errorf("stop kubelet: %w", err)
	}
	joined, err := n.joined(files)
	if err != nil {
		return err
	}
	if joined {
		return n.writeTree(ctx, files)
	}
	changes, err := guest.Plan(n.tree, files)
	if err != nil {
		return err
	}
	if err := n.apply(changes); err != nil {
		return err
	}
	// Commit point.
	final := guest.Private(paths.Built, n.Config.Applied)
	if err := n.step(func() error { return guest.Apply(n.tree, final) }); err != nil {
		return err
	}
	n.Log.Changed(paths.Built, "written")
	_, before, err := n.read()
	return errors.Join(err, n.forget(before))
}

// settle gives a node that has joined its built.json back, if it is missing or damaged: what an interrupted
// run put aside, else what was applied, else what is written now.
func (n *node) settle(built, before []byte) error {
	if json.Valid(built) {
		return nil
	}
	if before == nil {
		applied, err := os.ReadFile(paths.At(n.Root, paths.Applied(n.Slot)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		before = applied
	}
	if before == nil {
		before = n.Config.Applied
	}
	err := n.step(func() error { return guest.Apply(n.tree, guest.Private(paths.Built, before)) })
	if err == nil {
		n.Log.Changed(paths.Built, "restored: the node has joined with it")
	}
	return err
}

// forget removes what rebuild put aside.
func (n *node) forget(before []byte) error {
	if before == nil {
		return nil
	}
	return n.step(func() error { return n.tree.Unlink(paths.BuiltBefore) })
}

// sameNode refuses to give a node that has joined another name: its certificate is bound to the old one.
func (n *node) sameNode() error {
	data, _, err := n.read()
	if err != nil {
		return err
	}
	var was struct{ NodeName string }
	if err := json.Unmarshal(data, &was); err != nil {
		return fmt.Errorf("read %s: %w", paths.Built, err)
	}
	if was.NodeName == "" || was.NodeName == n.Config.NodeName {
		return nil
	}
	return exit.As(exit.Refused, fmt.Errorf("the node has joined as %q and cannot become %q: set NodeName to %q, or reset the host",
		was.NodeName, n.Config.NodeName, was.NodeName))
}

// read returns built.json and what was put aside for it; nil for an absent one.
func (n *node) read() (built, before []byte, err error) {
	for name, data := range map[string]*[]byte{paths.Built: &built, paths.BuiltBefore: &before} {
		*data, err = n.tree.ReadFile(name, maxBuilt)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
	}
	return built, before, nil
}

// joined tells whether kubelet has met the API server with the node's files as they are: it has
// a certificate of its own. A kubelet with a credential from the start registers as soon as
// it runs; only a credential that was exchanged before the node was there means that it could not.
func (n *node) joined(files []guest.File) (bool, error) {
	has, err := kubelet.HasCertificate(n.tree)
	if err != nil || has || n.Config.Token != "" {
		return has, err
	}
	built, before, err := n.read()
	if err != nil || built == nil && before == nil {
		return false, err
	}
	ran, err := kubelet.HasRun(n.tree)
	if err != nil || !ran {
		return false, err
	}
	if _, err := os.Stat(paths.At(n.Root, paths.Applied(n.Slot))); err == nil {
		return true, nil
	}
	at := slices.IndexFunc(files, func(f guest.File) bool { return f.Path == paths.Kubeconfig })
	other, err := guest.Plan(n.tree, files[at:at+1])
	return len(other) == 0, err
}

// apply makes the changes. Services are marked before the first change and after the last (package restart).
func (n *node) apply(changes []guest.Change) error {
	var services []string
	for _, change := range changes {
		if s := change.File.Service; s != "" && change.Difference == guest.Content && !slices.Contains(services, s) {
			services = append(services, s)
		}
	}
	if err := n.mark(services); err != nil {
		return err
	}
	for _, change := range changes {
		if err := n.step(func() error { return guest.Apply(n.tree, change.File) }); err != nil {
			return err
		}
		n.Log.Changed(change.File.Path, change.How())
	}
	return n.mark(services)
}

func (n *node) mark(services []string) error {
	for _, service := range services {
		if err := n.step(restart.Of(n.Root, n.Slot, service).Set); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes what a killed run left beside the files.
func (n *node) sweep(files []guest.File) error {
	var swept []string
	for _, f := range append(files, guest.File{Path: paths.Built}) {
		dir := path.Dir(f.Path)
		if slices.Contains(swept, dir) {
			continue
		}
		swept = append(swept, dir)
		if err := n.tree.Sweep(dir); err != nil {
			return err
		}
	}
	return nil
}
