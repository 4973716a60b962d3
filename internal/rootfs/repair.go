package rootfs

import (
	"context"
	"fmt"
	"path/filepath"

	"unbounded/internal/artifact"
	"unbounded/internal/inventory"
	"unbounded/internal/journal"
	"unbounded/internal/tree"
)

// Stale is, by name, why items are not in the tree as the inventory says or the configuration wants. It needs no network.
func Stale(root *tree.Root, have inventory.Inventory, items []artifact.Item) (map[string]string, error) {
	stale := map[string]string{}
	for _, item := range items {
		binary, _ := have.Binary(item.Name)
		why, err := artifact.Stale(root, item, binary)
		if err != nil {
			return nil, fmt.Errorf("check %s: %w", item, err)
		}
		if why != "" {
			stale[item.Name] = why
		}
	}
	return stale, nil
}

// Repair puts programs back into a complete tree, which may be running.
type Repair struct {
	*artifact.Placer
	Log  *journal.Log
	Name string // the tree, for messages
	// Mark, when it is not nil, is called before and after the program of a running
	// service ("kubelet", "containerd") becomes another one. The same program put back
	// needs no restart: what runs has it still.
	Mark func(service string) error
}

// Do repairs what Stale found, and the inventory last.
func (r *Repair) Do(ctx context.Context, have inventory.Inventory, items []artifact.Item, stale map[string]string) error {
	for _, item := range items {
		why := stale[item.Name]
		if why == "" {
			continue
		}
		if err := r.Root.Sweep(item.Folder()); err != nil { // what a killed repair left
			return err
		}
		old, _ := have.Binary(item.Name)
		if err := r.mark(item, old); err != nil {
			return err
		}
		now, err := r.Place(ctx, item, old)
		if err != nil {
			return Spaced(err, r.Store.Dir())
		}
		have.Set(now)
		r.Log.Changed(filepath.Join(r.Name, item.Dest), fmt.Sprintf("%s put back: %s", item, why))
		if err := r.mark(item, old); err != nil {
			return err
		}
	}
	return have.Save(r.Root)
}

func (r *Repair) mark(item artifact.Item, old inventory.Binary) error {
	another := old.Version != item.Version || (item.SHA256 != "" && item.SHA256 != old.SHA256)
	if r.Mark == nil || !another || (item.Name != "kubelet" && item.Name != "containerd") {
		return nil
	}
	return r.Mark(item.Name)
}
