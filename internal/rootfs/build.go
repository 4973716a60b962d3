// Package rootfs builds the tree of a machine from nothing, and repairs the binaries of one.
//
// Blobs first, then the tree beside its place, then the binaries and the inventory, then
// everything to disk; the rename is the commit point. What is left after a failure, or
// a kill, are blobs to go on from and at most a partial tree, which the next build removes.
package rootfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"unbounded/internal/artifact"
	"unbounded/internal/content"
	"unbounded/internal/durable"
	"unbounded/internal/fetch"
	"unbounded/internal/inventory"
	"unbounded/internal/journal"
	"unbounded/internal/oci"
	"unbounded/internal/tree"
	"unbounded/internal/unpack"
)

// Builder builds one tree.
type Builder struct {
	Dir     string // the tree; its folder is made when it is missing
	Partial string // where it is built, beside
	Arch    string
	Client  fetch.Client
	Store   *content.Store
	Log     *journal.Log
	Reserve int64    // bytes to leave free on the file systems
	Others  []string // trees whose downloads stay in the store
	Login   []byte   // docker-style credentials of registries
	moved   *atomic.Int64
}

// parallel is how many blobs are fetched at a time.
const parallel = 4

// Build makes the tree of the image ref with items in it. Dir is absent or an empty folder.
func (b *Builder) Build(ctx context.Context, ref oci.Reference, items []artifact.Item) error {
	if err := durable.MkdirAll(filepath.Dir(b.Dir), 0o700); err != nil {
		return err
	}
	if err := tree.Remove(b.Partial); err != nil {
		return err
	}
	b.moved = new(atomic.Int64)
	b.Client.Moved = func(n int64) { b.moved.Add(n) }
	source, err := oci.Open(ref, b.Client, b.Login)
	if err != nil {
		return err
	}
	image, err := b.pull(ctx, source, items)
	if errors.Is(err, oci.ErrGone) { // the tag has moved since: once more, with what it names now
		image, err = b.pull(ctx, source, items)
	}
	if err != nil {
		return err
	}
	have := inventory.Inventory{Image: inventory.Image{
		Reference: ref.String(), Digest: "sha256:" + image.Manifest, Platform: image.Platform,
	}}
	if err := b.assemble(ctx, source, image, have, items); err != nil {
		return errors.Join(err, tree.Remove(b.Partial))
	}
	if _, err := durable.Remove(b.Dir); err != nil { // an empty folder; one that is not is an error
		return err
	}
	// Commit point.
	if err := durable.Rename(b.Partial, b.Dir); err != nil {
		return err
	}
	b.Log.Changed(b.Dir, fmt.Sprintf("built from %s, sha256:%s", ref, image.Manifest))
	return nil
}

// pull resolves the image and brings its blobs into the store.
func (b *Builder) pull(ctx context.Context, source oci.Source, items []artifact.Item) (oci.Image, error) {
	b.Log.Status("resolve the image")
	image, err := source.Resolve(ctx, b.Store, b.Arch)
	if err != nil {
		return image, Spaced(err, b.Store.Dir())
	}
	if err := b.sweep(source, image, items); err != nil {
		return image, fmt.Errorf("sweep the content store: %w", err)
	}
	missing, bytes := b.Store.Missing(image.Blobs())
	if err := b.room(b.Store.Dir(), bytes, "fetch the image"); err != nil {
		return image, err
	}
	done := b.progress(bytes)
	defer done()
	err = content.Each(ctx, parallel, missing, func(ctx context.Context, blob content.Blob) error {
		return source.Store(ctx, b.Store, blob)
	})
	if err != nil {
		return image, Spaced(err, b.Store.Dir())
	}
	const maxConfig = 4 << 20
	config, err := b.Store.Get(image.Config, maxConfig)
	if errors.Is(err, content.ErrCorrupt) { // Get has deleted it
		if err = source.Store(ctx, b.Store, image.Config); err == nil {
			config, err = b.Store.Get(image.Config, maxConfig)
		}
	}
	if err != nil {
		return image, err
	}
	return image, image.Configure(config)
}

// sweep removes from the store what neither this build nor the tree of the other slot is of.
func (b *Builder) sweep(source oci.Source, image oci.Image, items []artifact.Item) error {
	keep := map[string]bool{}
	for _, blob := range image.Blobs() {
		keep[blob.SHA256] = true
	}
	for _, name := range source.Keep() {
		keep[name] = true
	}
	placer := &artifact.Placer{Store: b.Store}
	for _, item := range items {
		for _, name := range placer.Keep(item, inventory.Binary{}) {
			keep[name] = true
		}
	}
	for _, other := range b.Others {
		root, err := tree.Open(other)
		if err != nil {
			continue // no tree, nothing of it to keep
		}
		have, _ := inventory.Load(root) // the same
		for _, binary := range have.Binaries {
			keep[binary.SHA256] = true
		}
		_ = root.Close() // only read
	}
	return b.Store.Sweep(keep)
}

// assemble makes the partial tree, complete and on disk.
func (b *Builder) assemble(ctx context.Context, source oci.Source, image oci.Image, have inventory.Inventory, items []artifact.Item) error {
	if err := b.unpack(ctx, source, image); err != nil {
		return err
	}
	root, err := tree.Open(b.Partial)
	if err != nil {
		return err
	}
	defer root.Close()
	root.Lazy = true
	// What is ours there no image may bring along: its inventory, the configuration that a node is built from.
	if err := root.RemoveAll(filepath.Dir(inventory.Path)); err != nil {
		return err
	}
	b.Log.Status("bring the node's binaries")
	placer := &artifact.Placer{Client: &b.Client, Store: b.Store, Root: root}
	binaries := make([]inventory.Binary, len(items))
	index := map[string]int{}
	for n, item := range items {
		index[item.Name] = n
	}
	err = content.Each(ctx, parallel, items, func(ctx context.Context, item artifact.Item) (err error) {
		binaries[index[item.Name]], err = placer.Fresh(ctx, item)
		return err
	})
	if err != nil {
		return Spaced(err, b.Store.Dir())
	}
	have.Binaries = binaries
	if err := have.Save(root); err != nil {
		return Spaced(err, filepath.Dir(b.Dir))
	}
	b.Log.Status("sync the tree")
	return durable.SyncFS(b.Partial)
}

// unpack makes the partial tree from the layers. Blobs that turn out to be corrupt are fetched again, each once.
func (b *Builder) unpack(ctx context.Context, source oci.Source, image oci.Image) error {
	var layers []unpack.Layer
	for _, layer := range image.Layers {
		layers = append(layers, unpack.Layer{
			Path: b.Store.Path(layer.SHA256), SHA256: layer.SHA256, Size: layer.Size, DiffID: layer.DiffID,
		})
	}
	again := map[string]bool{}
	for {
		size, err := unpack.Estimate(layers)
		if err != nil {
			return err
		}
		if err := b.room(filepath.Dir(b.Dir), size, "unpack the image"); err != nil {
			return err
		}
		if err := errors.Join(os.Mkdir(b.Partial, 0o755), os.Chmod(b.Partial, 0o755)); err != nil {
			return err
		}
		_, err = unpack.Tree(ctx, b.Partial, layers, unpack.Options{
			Reserve: b.Reserve, Warn: b.Log.Warn, Status: b.Log.Status,
		})
		corrupt, ok := errors.AsType[*unpack.CorruptError](err)
		if !ok || again[corrupt.Layer.SHA256] {
			return Spaced(err, filepath.Dir(b.Dir))
		}
		again[corrupt.Layer.SHA256] = true
		b.Log.Notice("%v: fetched again", err)
		bad := content.Blob{SHA256: corrupt.Layer.SHA256, Size: corrupt.Layer.Size}
		if err := errors.Join(tree.Remove(b.Partial), b.Store.Delete(bad.SHA256), source.Store(ctx, b.Store, bad)); err != nil {
			return err
		}
	}
}

// room fails when less than need and the reserve is free at path.
func (b *Builder) room(path string, need int64, what string) error {
	free, _, err := tree.Free(path)
	if err != nil {
		return err
	}
	if free < need+b.Reserve {
		return fmt.Errorf("%s: %s more are needed on the file system of %s, %s are available: make room there", what, mega(need+b.Reserve), path, mega(free))
	}
	return nil
}

// Spaced adds the numbers to an error of the file system of path being full; other errors stay as they are.
func Spaced(err error, path string) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unpack.ErrFull) {
		return err
	}
	free, inodes, ask := tree.Free(path)
	if ask != nil {
		return errors.Join(err, ask)
	}
	return fmt.Errorf("%w: %s and %d inodes are available on the file system of %s: make room there", err, mega(free), inodes, path)
}

func mega(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// progress shows once in a second how far the fetch of total bytes is, until the returned function is called.
func (b *Builder) progress(total int64) func() {
	b.moved.Store(0)
	ticker, stop := time.NewTicker(time.Second), make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-ticker.C:
				b.Log.Status("fetch the image: %s of %s", mega(b.moved.Load()), mega(total))
			case <-stop:
				ticker.Stop()
				return
			}
		}
	})
	return func() { close(stop); group.Wait() }
}
