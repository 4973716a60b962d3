package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"unbounded/internal/artifact"
	"unbounded/internal/content"
	"unbounded/internal/exit"
	"unbounded/internal/fetch"
	"unbounded/internal/inventory"
	"unbounded/internal/oci"
	"unbounded/internal/paths"
	"unbounded/internal/restart"
	"unbounded/internal/rootfs"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
	"unbounded/internal/tree"
)

// slots is the part of PID 1 that is asked.
type slots interface {
	SlotRuns(ctx context.Context, slot string) (bool, error)
}

// reserve is what a build leaves free on its file systems.
const reserve = 64 << 20

type builder struct {
	env     *stage.Env
	slots   slots
	arch    string
	client  fetch.Client
	reserve int64
	dir     string // the tree
	partial string // where it is built
}

func converge(ctx context.Context, env *stage.Env, manager *systemd.Manager) error {
	return newBuilder(env, manager).converge(ctx)
}

func newBuilder(env *stage.Env, slots slots) *builder {
	return &builder{
		env: env, slots: slots, arch: runtime.GOARCH, reserve: reserve,
		client:  fetch.Client{HTTP: fetch.NewHTTP(), Status: env.Log.Status},
		dir:     paths.At(env.Root, paths.Tree(env.Slot)),
		partial: paths.At(env.Root, paths.Partial(env.Slot)),
	}
}

// found is what the plan depends on.
type found struct {
	state tree.State
	runs  bool
	have  *inventory.Inventory // nil: the tree has none
}

// step is what there is to do.
type step int

const (
	build  step = iota // the tree, from nothing
	repair             // its programs
	leave              // it alone
)

// plan decides. A tree of a running machine is never built, nor refused what it holds.
func plan(dir string, image oci.Reference, f found) (step, error) {
	refuse := func(format string, args ...any) (step, error) {
		return leave, exit.As(exit.Refused, fmt.Errorf("%s is "+format, append([]any{dir}, args...)...))
	}
	switch {
	case f.runs && f.state != tree.Filled:
		return leave, fmt.Errorf("the machine runs, but %s is %s: stop the machine, then start again", dir, f.state)
	case f.runs && f.have == nil:
		return leave, nil
	}
	switch f.state {
	case tree.Absent, tree.Empty:
		return build, nil
	case tree.Mount:
		return refuse("a mount point: unmount it, or mount the file system at %s instead", paths.Machines)
	case tree.Symlink:
		return refuse("a symbolic link: remove it, or link %s instead", paths.Machines)
	case tree.Subvolume:
		return refuse("a btrfs subvolume: remove it with `machinectl remove` or `btrfs subvolume delete`")
	case tree.NotFolder:
		return refuse("not a folder: move it away")
	case tree.Filled:
	}
	switch {
	case f.have == nil:
		return refuse("not empty, and nothing that we built: move it away")
	case f.have.Image.Reference != image.String():
		return refuse("built from image %s, and %s is wanted: reset the host first", f.have.Image.Reference, image)
	}
	return repair, nil
}

func (b *builder) converge(ctx context.Context) error {
	image, err := oci.Parse(b.env.Config.Image)
	if err != nil {
		return exit.As(exit.Refused, err)
	}
	f, err := b.look(ctx)
	if err != nil {
		return err
	}
	next, err := plan(b.dir, image, f)
	if err != nil {
		return err
	}
	items := artifact.Plan(b.env.Config.Downloads, b.arch)
	if err := artifact.Check(items); err != nil {
		return exit.As(exit.Refused, err)
	}
	switch next {
	case build:
		return b.build(ctx, image, items)
	case repair:
		if err := b.clean(); err != nil {
			return err
		}
		return b.repair(ctx, f, items)
	case leave:
		b.env.Log.Notice("the machine runs in a tree that we did not build: %s is left alone", b.dir)
	}
	return nil
}

// look asks PID 1 first: a tree that runs can be renamed away without anybody noticing.
func (b *builder) look(ctx context.Context) (f found, err error) {
	if f.runs, err = b.slots.SlotRuns(ctx, b.env.Slot); err != nil {
		return f, err
	}
	if f.state, err = tree.Inspect(b.dir); err != nil || f.state != tree.Filled {
		return f, err
	}
	root, err := tree.Open(b.dir)
	if err != nil {
		return f, err
	}
	defer root.Close()
	have, err := inventory.Load(root)
	switch {
	case errors.Is(err, inventory.ErrNone):
		return f, nil
	case err != nil:
		return f, err
	}
	f.have = &have
	return f, nil
}

// build makes the tree from nothing.
func (b *builder) build(ctx context.Context, image oci.Reference, items []artifact.Item) (err error) {
	login, err := oci.Credentials(b.env.Config.RegistryAuthFile)
	if err != nil {
		return fmt.Errorf("read RegistryAuthFile: %w", err)
	}
	store, err := b.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	one := rootfs.Builder{
		Dir: b.dir, Partial: b.partial, Arch: b.arch, Client: b.client, Store: store,
		Log: b.env.Log, Reserve: b.reserve, Login: login,
	}
	for _, slot := range paths.Slots() {
		one.Others = append(one.Others, paths.At(b.env.Root, paths.Tree(slot)))
	}
	return one.Build(ctx, image, items)
}

// clean removes what a killed attempt left beside a complete tree.
func (b *builder) clean() error {
	state, err := tree.Inspect(b.partial)
	if err != nil || state == tree.Absent {
		return err
	}
	store, err := b.open()
	if err != nil {
		return err
	}
	return errors.Join(tree.Remove(b.partial), store.Close())
}

// open opens the content store; its lock keeps a second builder out.
func (b *builder) open() (*content.Store, error) {
	return content.Open(paths.At(b.env.Root, paths.Content))
}

// repair puts back the programs that are not as the inventory says or as the configuration wants.
func (b *builder) repair(ctx context.Context, f found, items []artifact.Item) (err error) {
	root, err := tree.Open(b.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.SweepFor(inventory.Path); err != nil { // what a killed repair left
		return err
	}
	stale, err := rootfs.Stale(root, *f.have, items)
	if err != nil || len(stale) == 0 {
		return err
	}
	store, err := b.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	repair := rootfs.Repair{
		Placer: &artifact.Placer{Client: &b.client, Store: store, Root: root},
		Log:    b.env.Log,
		Name:   paths.Tree(b.env.Slot),
	}
	if f.runs {
		repair.Mark = func(service string) error { return restart.Of(b.env.Root, b.env.Slot, service).Set() }
	}
	return repair.Do(ctx, *f.have, items, stale)
}
