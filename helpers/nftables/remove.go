package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"unbounded/internal/before"
	"unbounded/internal/exit"
	"unbounded/internal/nft"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

const (
	// conflicts is the concern of the stage that holds the host's firewalls back. While it has a before-image
	// they are about to be started.
	conflicts = "conflicts"
	// guard is the concern of the tables that are to outlive that.
	guard = "nftables-guard"
)

// remove puts the tables back that converge removed in this boot; those of an earlier boot are loaded by the
// host's own services, if at all.
//
// It runs twice in a reset: before and after those services are started, since most of them flush the
// tables of everybody. The first run notes what is there, in an image of its own, and the second puts
// back what has gone meanwhile. Killed between the two, the next reset begins with that.
func remove(ctx context.Context, env *stage.Env) (err error) {
	manager, err := systemd.Connect(ctx)
	if err != nil {
		return fmt.Errorf("cannot tell whether a machine runs, nothing was restored: %w", err)
	}
	defer manager.Close()
	running, err := runs(ctx, manager)
	if err != nil {
		return err
	}
	if running != "" {
		return fmt.Errorf("%s runs, and the packet filter is the node's: stop it with `systemctl stop %s`", running, paths.MachineUnit(running))
	}
	return restore(env, func() (restorer, error) { return nft.Dial(0) })
}

// restorer is the packet filter, once more.
type restorer interface {
	Save() (*nft.Ruleset, error)
	Restore(tables []nft.Table) error
	Close() error
}

func restore(env *stage.Env, dial func() (restorer, error)) (err error) {
	pending, err := firewallsPending(env.Root)
	if err != nil {
		return err
	}
	var images []*before.Image
	saved := false // in this boot
	for _, name := range []string{concern, guard} {
		image, err := before.Load(env.Root, name)
		if err != nil {
			return err
		}
		images = append(images, image)
		saved = saved || slices.ContainsFunc(image.Entries(), image.SameBoot)
	}
	if len(images[0].Entries()) > 0 && !slices.ContainsFunc(images[0].Entries(), images[0].SameBoot) {
		env.Log.Info("the packet filter of the boot of %s is gone with it: the host's own services load theirs", paths.NftablesUnit)
	}
	if !saved && !pending { // nothing is asked of a kernel that may have no packet filter
		return discard(images)
	}
	host, err := dial()
	if !saved && errors.Is(err, nft.ErrUnsupported) {
		return discard(images) // it has no tables either
	}
	if err != nil {
		return explain(err)
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	for i, image := range images {
		if err := restoreTables(env, host, image, i == 0); err != nil {
			return err
		}
	}
	if pending {
		return watch(host, images)
	}
	return discard(images)
}

func discard(images []*before.Image) error {
	var err error
	for _, image := range images {
		err = errors.Join(err, image.Discard())
	}
	return err
}

// firewallsPending tells whether the next stage may start a firewall of the host.
func firewallsPending(root string) (bool, error) {
	image, err := before.Load(root, conflicts)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(image.Entries(), func(e before.Entry) bool {
		return e.Kind == before.Unit && slices.Contains(paths.Firewalls(), e.Object)
	}), nil
}

// watch notes what is there in the guard's image, in place of what an earlier attempt noted.
func watch(host restorer, images []*before.Image) error {
	ruleset, err := host.Save()
	if err != nil {
		return explain(err)
	}
	if err := discard(images); err != nil {
		return err
	}
	free, _ := split(ruleset.Tables)
	return keep(images[1], free)
}

// restoreTables makes those tables of image that are not there now, each in a transaction of its own, so that one
// that this kernel refuses is named and the others are back.
func restoreTables(env *stage.Env, host restorer, image *before.Image, say bool) error {
	missing, there, err := look(host, image)
	if err != nil {
		return err
	}
	for _, found := range there {
		if say {
			env.Log.Notice("table %s is there again and is left as it is", found.now)
			continue
		}
		lost, err := found.was.Lost(found.now)
		if err != nil {
			return err
		}
		if lost > 0 {
			env.Log.Warn("table %s has lost %d rules, since a firewall of the host was started that replaces what is in it: "+
				"restart the services that made them", found.now, lost)
		}
	}
	for _, table := range missing {
		err := host.Restore([]nft.Table{table})
		if errors.Is(err, syscall.EEXIST) { // somebody was faster
			env.Log.Notice("table %s is there again and is left as it is", table)
			continue
		}
		if err != nil {
			return fmt.Errorf("table %s: %w; remove the cause, or give the table up by moving %s away",
				table, explain(err), image.Path())
		}
		env.Log.Changed("nftables", "table "+table.String()+" as it was before")
	}
	return nil
}

// pair is a saved table and the one of its name that is there.
type pair struct{ was, now nft.Table }

// look reads the tables of image that were saved in this boot.
func look(host restorer, image *before.Image) (missing []nft.Table, there []pair, err error) {
	if !slices.ContainsFunc(image.Entries(), image.SameBoot) {
		return nil, nil, nil
	}
	ruleset, err := host.Save()
	if err != nil {
		return nil, nil, explain(err)
	}
	for _, e := range image.Entries() {
		if !image.SameBoot(e) {
			continue
		}
		if e.Kind != before.Ruleset {
			return nil, nil, exit.As(exit.Refused, fmt.Errorf("%s is of kind %s, which this release cannot restore: use a newer one", e.Object, e.Kind))
		}
		var table nft.Table
		if err := table.UnmarshalBinary(e.Before.Bytes); err != nil {
			return nil, nil, fmt.Errorf("%s: %s: %w", image.Path(), e.Object, err)
		}
		at := slices.IndexFunc(ruleset.Tables, func(t nft.Table) bool { return t.String() == e.Object })
		if at < 0 {
			missing = append(missing, table)
		} else {
			there = append(there, pair{table, ruleset.Tables[at]})
		}
	}
	return missing, there, nil
}
