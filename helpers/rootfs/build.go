package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"unbounded/internal/artifact"
	"unbounded/internal/content"
	"unbounded/internal/durable"
	"unbounded/internal/inventory"
	"unbounded/internal/oci"
	"unbounded/internal/paths"
	"unbounded/internal/tree"
	"unbounded/internal/unpack"
)

// parallel is how many blobs are fetched at a time.
const parallel = 4

// build makes the tree from nothing. What it leaves after a failure are blobs to go on from.
func (b *builder) build(ctx context.Context, ref oci.Reference, items []artifact.Item) (err error) {
	if err := durable.MkdirAll(filepath.Dir(b.dir), 0o700); err != nil {
		return err
	}
	store, err := b.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := tree.Remove(b.partial); err != nil {
		return err
	}
	file := b.env.Config.RegistryAuthFile
	if file != "" {
		file = paths.At(b.env.Root, file)
	}
	credentials, err := oci.Credentials(file)
	if err != nil {
		return fmt.Errorf("read RegistryAuthFile: %w", err)
	}
	source, err := oci.Open(ref, b.client, credentials)
	if err != nil {
		return err
	}
	image, err := b.pull(ctx, source, store, items)
	if errors.Is(err, oci.ErrGone) { // the tag has moved since: once more, with what it names now
		image, err = b.pull(ctx, source, store, items)
	}
	if err != nil {
		return err
	}
	have := inventory.Inventory{Image: inventory.Image{
		Reference: ref.String(), Digest: "sha256:" + image.Manifest, Platform: image.Platform,
	}}
	if err := b.assemble(ctx, source, store, image, have, items); err != nil {
		return errors.Join(err, tree.Remove(b.partial))
	}
	if _, err := durable.Remove(b.dir); err != nil { // an empty folder; one that is not is an error
		return err
	}
	// Commit point.
	if err := durable.Rename(b.partial, b.dir); err != nil {
		return err
	}
	b.env.Log.Changed(b.dir, fmt.Sprintf("built from %s, sha256:%s", ref, image.Manifest))
	return nil
}

// pull resolves the image and brings its blobs into the store.
func (b *builder) pull(ctx context.Context, source oci.Source, store *content.Store, items []artifact.Item) (oci.Image, error) {
	b.env.Log.Status("resolve the image")
	image, err := source.Resolve(ctx, store, b.arch)
	if err != nil {
		return image, b.spaced(err, paths.Content)
	}
	if err := b.sweep(source, store, image, items); err != nil {
		return image, fmt.Errorf("sweep the content store: %w", err)
	}
	missing, bytes := store.Missing(image.Blobs())
	if err := b.room(paths.Content, bytes, "fetch the image"); err != nil {
		return image, err
	}
	done := b.progress(bytes)
	defer done()
	err = content.Each(ctx, parallel, missing, func(ctx context.Context, blob content.Blob) error {
		return source.Store(ctx, store, blob)
	})
	if err != nil {
		return image, b.spaced(err, paths.Content)
	}
	const maxConfig = 4 << 20
	config, err := store.Get(image.Config, maxConfig)
	if errors.Is(err, content.ErrCorrupt) { // Get has deleted it
		if err = source.Store(ctx, store, image.Config); err == nil {
			config, err = store.Get(image.Config, maxConfig)
		}
	}
	if err != nil {
		return image, err
	}
	return image, image.Configure(config)
}

// sweep removes from the store what neither this build nor the tree of the other slot is of.
func (b *builder) sweep(source oci.Source, store *content.Store, image oci.Image, items []artifact.Item) error {
	keep := map[string]bool{}
	for _, blob := range image.Blobs() {
		keep[blob.SHA256] = true
	}
	for _, name := range source.Keep() {
		keep[name] = true
	}
	placer := &artifact.Placer{Store: store}
	for _, item := range items {
		for _, name := range placer.Keep(item, inventory.Binary{}) {
			keep[name] = true
		}
	}
	for _, slot := range paths.Slots() {
		root, err := tree.Open(paths.At(b.env.Root, paths.Tree(slot)))
		if err != nil {
			continue // no tree, nothing of it to keep
		}
		have, _ := inventory.Load(root) // the same
		for _, binary := range have.Binaries {
			keep[binary.SHA256] = true
		}
		_ = root.Close() // only read
	}
	return store.Sweep(keep)
}

// assemble makes the partial tree, complete and on disk.
func (b *builder) assemble(ctx context.Context, source oci.Source, store *content.Store, image oci.Image, have inventory.Inventory, items []artifact.Item) error {
	if err := b.unpack(ctx, source, store, image); err != nil {
		return err
	}
	root, err := tree.Open(b.partial)
	if err != nil {
		return err
	}
	defer root.Close()
	root.Lazy = true
	// What is ours there no image may bring along: its inventory, the configuration that a node is built from.
	if err := root.RemoveAll(filepath.Dir(inventory.Path)); err != nil {
		return err
	}
	b.env.Log.Status("bring the node's binaries")
	placer := &artifact.Placer{Client: &b.client, Store: store, Root: root}
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
		return b.spaced(err, paths.Content)
	}
	have.Binaries = binaries
	if err := have.Save(root); err != nil {
		return b.spaced(err, paths.Machines)
	}
	b.env.Log.Status("sync the tree")
	return durable.SyncFS(b.partial)
}

// unpack makes the partial tree from the layers. Blobs that turn out to be corrupt are fetched again, each once.
func (b *builder) unpack(ctx context.Context, source oci.Source, store *content.Store, image oci.Image) error {
	var layers []unpack.Layer
	for _, layer := range image.Layers {
		layers = append(layers, unpack.Layer{
			Path: store.Path(layer.SHA256), SHA256: layer.SHA256, Size: layer.Size, DiffID: layer.DiffID,
		})
	}
	again := map[string]bool{}
	for {
		size, err := unpack.Estimate(layers)
		if err != nil {
			return err
		}
		if err := b.room(paths.Machines, size, "unpack the image"); err != nil {
			return err
		}
		if err := errors.Join(os.Mkdir(b.partial, 0o755), os.Chmod(b.partial, 0o755)); err != nil {
			return err
		}
		_, err = unpack.Tree(ctx, b.partial, layers, unpack.Options{
			Reserve: b.reserve, Warn: b.env.Log.Warn, Status: b.env.Log.Status,
		})
		corrupt, ok := errors.AsType[*unpack.CorruptError](err)
		if !ok || again[corrupt.Layer.SHA256] {
			return b.spaced(err, paths.Machines)
		}
		again[corrupt.Layer.SHA256] = true
		b.env.Log.Notice("%v: fetched again", err)
		bad := content.Blob{SHA256: corrupt.Layer.SHA256, Size: corrupt.Layer.Size}
		if err := errors.Join(tree.Remove(b.partial), store.Delete(bad.SHA256), source.Store(ctx, store, bad)); err != nil {
			return err
		}
	}
}

// room fails when less than need and the reserve is free at path.
func (b *builder) room(path string, need int64, what string) error {
	path = paths.At(b.env.Root, path)
	free, _, err := tree.Free(path)
	if err != nil {
		return err
	}
	if free < need+b.reserve {
		return fmt.Errorf("%s: %s more are needed on the file system of %s, %s are available: make room there", what, mega(need+b.reserve), path, mega(free))
	}
	return nil
}

// spaced adds the numbers to an error of a full file system.
func (b *builder) spaced(err error, path string) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unpack.ErrFull) {
		return err
	}
	path = paths.At(b.env.Root, path)
	free, inodes, ask := tree.Free(path)
	if ask != nil {
		return errors.Join(err, ask)
	}
	return fmt.Errorf("%w: %s and %d inodes are available on the file system of %s: make room there", err, mega(free), inodes, path)
}

func mega(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// progress shows once in a second how far the fetch of total bytes is, until the returned function is called.
func (b *builder) progress(total int64) func() {
	b.moved.Store(0)
	ticker, stop := time.NewTicker(time.Second), make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-ticker.C:
				b.env.Log.Status("fetch the image: %s of %s", mega(b.moved.Load()), mega(total))
			case <-stop:
				ticker.Stop()
				return
			}
		}
	})
	return func() { close(stop); group.Wait() }
}
