// Package build changes the files of a node in the tree of its machine, in an order that never
// makes the applied configuration another one than the node was built from.
//
// The commit point is built.json: the configuration from which the node is built, without which
// kubelet does not start. Where nothing differs, nothing is done. A kubelet that has
// joined gets new files, but built.json stays what it joined with. Otherwise
// built.json is put aside, kubelet is stopped, and it is looked once more whether it
// has joined; then the files are written, built.json last.
package build

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
	"unbounded/internal/exit"
	"unbounded/internal/guest"
	"unbounded/internal/journal"
	"unbounded/internal/kubelet"
	"unbounded/internal/paths"
	"unbounded/internal/restart"
	"unbounded/internal/tree"
)

// maxBuilt is more than any configuration has.
const maxBuilt = 2 << 20

// Build is a node to be built in the tree of a slot. All fields are needed.
type Build struct {
	Root   string // of the host
	Slot   string
	Tree   *tree.Root
	Config *config.Config
	Files  []guest.File // all of the node's but built.json, in the order of writing
	Log    *journal.Log
	// Stop stops kubelet in the machine, if the machine runs.
	Stop func(ctx context.Context) error
	// Step does one change. Tests count them and end the run at each.
	Step func(do func() error) error
}

// Converge brings the tree's files to what they should be, and built.json to what the node is built from.
func (b *Build) Converge(ctx context.Context) error {
	if err := b.sweep(); err != nil {
		return err
	}
	changes, err := guest.Plan(b.Tree, b.Files)
	if err != nil {
		return err
	}
	joined, err := b.joined()
	if err != nil {
		return err
	}
	built, before, err := b.read()
	if err != nil {
		return err
	}
	if !joined && (len(changes) > 0 || string(built) != string(b.Config.Applied)) {
		return b.rebuild(ctx, built)
	}
	if joined {
		if err := b.settle(built, before); err != nil {
			return err
		}
		if err := b.sameNode(); err != nil {
			return err
		}
	}
	return errors.Join(b.apply(changes), b.forget(before))
}

// rebuild changes the files of a node that has not joined.
func (b *Build) rebuild(ctx context.Context, built []byte) error {
	// Without built.json no kubelet starts any more; the one that runs is stopped then. If it has
	// joined at the last moment, built.json is what it joined with, and comes back.
	if built != nil {
		before := guest.Private(paths.BuiltBefore, built)
		if err := b.Step(func() error { return guest.Apply(b.Tree, before) }); err != nil {
			return err
		}
		if err := b.Step(func() error { return b.Tree.Unlink(paths.Built) }); err != nil {
			return err
		}
	}
	if err := b.Stop(ctx); err != nil {
		return fmt.Errorf("stop kubelet: %w", err)
	}
	joined, err := b.joined()
	if err != nil {
		return err
	}
	if joined {
		return b.Converge(ctx)
	}
	changes, err := guest.Plan(b.Tree, b.Files)
	if err != nil {
		return err
	}
	if err := b.apply(changes); err != nil {
		return err
	}
	// Commit point.
	final := guest.Private(paths.Built, b.Config.Applied)
	if err := b.Step(func() error { return guest.Apply(b.Tree, final) }); err != nil {
		return err
	}
	b.Log.Changed(b.onHost(paths.Built), "written")
	_, before, err := b.read()
	return errors.Join(err, b.forget(before))
}

// settle gives a node that has joined its built.json back, if it is missing or damaged: what an interrupted
// run put aside, else what was applied, else what is written now.
func (b *Build) settle(built, before []byte) error {
	if json.Valid(built) {
		return nil
	}
	if before == nil {
		applied, err := os.ReadFile(paths.At(b.Root, paths.Applied(b.Slot)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		before = applied
	}
	if before == nil {
		before = b.Config.Applied
	}
	err := b.Step(func() error { return guest.Apply(b.Tree, guest.Private(paths.Built, before)) })
	if err == nil {
		b.Log.Changed(b.onHost(paths.Built), "restored: the node has joined with it")
	}
	return err
}

// forget removes what rebuild put aside.
func (b *Build) forget(before []byte) error {
	if before == nil {
		return nil
	}
	return b.Step(func() error { return b.Tree.Unlink(paths.BuiltBefore) })
}

// sameNode refuses to give a node that has joined another name: its certificate is bound to the old one.
func (b *Build) sameNode() error {
	data, _, err := b.read()
	if err != nil {
		return err
	}
	var was struct{ NodeName string }
	if err := json.Unmarshal(data, &was); err != nil {
		return fmt.Errorf("read %s: %w", paths.Built, err)
	}
	if was.NodeName == "" || was.NodeName == b.Config.NodeName {
		return nil
	}
	return exit.As(exit.Refused, fmt.Errorf("the node has joined as %q and cannot become %q: set NodeName to %q, or reset the host",
		was.NodeName, b.Config.NodeName, was.NodeName))
}

// read returns built.json and what was put aside for it; nil for an absent one.
func (b *Build) read() (built, before []byte, err error) {
	for name, data := range map[string]*[]byte{paths.Built: &built, paths.BuiltBefore: &before} {
		*data, err = b.Tree.ReadFile(name, maxBuilt)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
	}
	return built, before, nil
}

// joined tells whether kubelet has met the API server with the node's files as they are: it has
// a certificate of its own. A kubelet with a credential from the start registers as soon as
// it runs; only a credential that was exchanged before the node was there means that it could not.
func (b *Build) joined() (bool, error) {
	has, err := kubelet.HasCertificate(b.Tree)
	if err != nil || has || b.Config.Token != "" {
		return has, err
	}
	built, before, err := b.read()
	if err != nil || built == nil && before == nil {
		return false, err
	}
	ran, err := kubelet.HasRun(b.Tree)
	if err != nil || !ran {
		return false, err
	}
	if _, err := os.Stat(paths.At(b.Root, paths.Applied(b.Slot))); err == nil {
		return true, nil
	}
	at := slices.IndexFunc(b.Files, func(f guest.File) bool { return f.Path == paths.Kubeconfig })
	other, err := guest.Plan(b.Tree, b.Files[at:at+1])
	return len(other) == 0, err
}

// apply makes the changes. Services are marked before the first change and after the last (package restart).
func (b *Build) apply(changes []guest.Change) error {
	var services []string
	for _, change := range changes {
		if s := change.File.Service; s != "" && change.Difference == guest.Content && !slices.Contains(services, s) {
			services = append(services, s)
		}
	}
	if err := b.mark(services); err != nil {
		return err
	}
	for _, change := range changes {
		if err := b.Step(func() error { return guest.Apply(b.Tree, change.File) }); err != nil {
			return err
		}
		b.Log.Changed(b.onHost(change.File.Path), change.How())
	}
	return b.mark(services)
}

// onHost is the name that the host has for a file of the tree: in the journal the one is not taken for the other.
func (b *Build) onHost(name string) string { return paths.Tree(b.Slot) + name }

func (b *Build) mark(services []string) error {
	for _, service := range services {
		if err := b.Step(restart.Of(b.Root, b.Slot, service).Set); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes what a killed run left beside the files.
func (b *Build) sweep() error {
	var swept []string
	for _, f := range append(slices.Clip(b.Files), guest.File{Path: paths.Built}) {
		dir := path.Dir(f.Path)
		if slices.Contains(swept, dir) {
			continue
		}
		swept = append(swept, dir)
		if err := b.Tree.Sweep(dir); err != nil {
			return err
		}
	}
	return nil
}
