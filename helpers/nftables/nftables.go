package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"unbounded/internal/before"
	"unbounded/internal/config"
	"unbounded/internal/exit"
	"unbounded/internal/nft"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

const (
	concern = "nftables"
	// attempts to clear the slate while others write to it.
	attempts = 5
)

// slots answers whether a slot runs.
type slots interface {
	SlotRuns(ctx context.Context, slot string) (bool, error)
}

// filter is the packet filter.
type filter interface {
	Save() (*nft.Ruleset, error)
	Flush(generation uint32) error
}

func converge(ctx context.Context, env *stage.Env) (err error) {
	if env.Config.HostFirewall == config.FirewallKeep {
		env.Log.Info("HostFirewall is keep: the packet filter is left as it is")
		return nil
	}
	manager, err := systemd.Connect(ctx)
	if err != nil {
		return fmt.Errorf("cannot tell whether a machine runs, nothing was flushed: %w", err)
	}
	defer manager.Close()
	running, err := runs(ctx, manager)
	if err != nil {
		return err
	}
	if running != "" {
		env.Log.Info("%s runs: the packet filter is the node's", running)
		return nil
	}
	conn, err := nft.Dial(0)
	if err != nil {
		return explain(err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return clean(env, conn)
}

// runs is the slot that runs, "" if none does. Not to know is an error: a flush would take the node's rules.
func runs(ctx context.Context, host slots) (string, error) {
	for _, slot := range paths.Slots() {
		running, err := host.SlotRuns(ctx, slot)
		if err != nil {
			return "", fmt.Errorf("cannot tell whether a machine runs, nothing was touched: %w", err)
		}
		if running {
			return slot, nil
		}
	}
	return "", nil
}

func explain(err error) error {
	switch {
	case errors.Is(err, nft.ErrNotPermitted):
		return exit.As(exit.NotPermitted, fmt.Errorf("%w; run as root", err))
	case errors.Is(err, nft.ErrUnsupported):
		return exit.As(exit.Refused, fmt.Errorf("%w; boot a kernel with nf_tables, or load that module", err))
	}
	return err
}

// clean removes all tables that can be removed. What is removed is exactly what was saved: the flush fails when
// somebody has changed the ruleset in between, and everything is looked at again.
func clean(env *stage.Env, host filter) error {
	if err := warnLegacy(env); err != nil {
		return err
	}
	image, err := before.Load(env.Root, concern)
	if err != nil {
		return err
	}
	for range attempts {
		ruleset, err := host.Save()
		if err != nil {
			return explain(err)
		}
		free, owned := split(ruleset.Tables)
		if len(free) == 0 {
			warnOwned(env, owned)
			return nil
		}
		hosts, err := foreign(env.Root, free)
		if err != nil {
			return err
		}
		if err := keep(image, hosts); err != nil {
			return err
		}
		err = host.Flush(ruleset.Generation)
		if errors.Is(err, nft.ErrChanged) {
			continue
		}
		if err != nil {
			return explain(err)
		}
		env.Log.Changed("nftables", "removed "+names(free))
	}
	return errors.New("the packet filter is written to again and again: stop the service that does it (`nft monitor` shows what it writes)")
}

// split tells the tables that a flush removes from those with an owner.
func split(tables []nft.Table) (free, owned []nft.Table) {
	for _, table := range tables {
		if table.Owner == 0 {
			free = append(free, table)
		} else {
			owned = append(owned, table)
		}
	}
	return free, owned
}

// foreign is tables without what a node made, where one may have run: an attempt that was cut off left a tree.
func foreign(root string, tables []nft.Table) ([]nft.Table, error) {
	slots := paths.Slots()
	ran := slices.ContainsFunc(slots[:], func(slot string) bool {
		_, err := os.Lstat(paths.At(root, paths.Tree(slot)))
		return err == nil
	})
	if !ran {
		return tables, nil
	}
	var kept []nft.Table
	for _, table := range tables {
		rest, some, err := table.Foreign()
		if err != nil {
			return nil, fmt.Errorf("save table %s: %w", table, err)
		}
		if some {
			kept = append(kept, rest)
		}
	}
	return kept, nil
}

// keep adds tables to the before-image. A table that is in it already stays as it was first found in this
// boot: counters differ at every look, and what comes later was made on a host that was ours already.
func keep(image *before.Image, tables []nft.Table) error {
	for _, table := range tables {
		if slices.ContainsFunc(image.Entries(), func(e before.Entry) bool {
			return e.Object == table.String() && image.SameBoot(e)
		}) {
			continue
		}
		data, err := table.MarshalBinary()
		if err != nil {
			return fmt.Errorf("save table %s: %w", table, err)
		}
		image.Note(before.Change{
			Kind: before.Ruleset, Object: table.String(), Now: before.State{Bytes: data}, Want: before.Gone(),
		})
	}
	return image.Save()
}

func names(tables []nft.Table) string {
	list := make([]string, len(tables))
	for i, table := range tables {
		list[i] = "table " + table.String()
	}
	return strings.Join(list, ", ")
}

// warnOwned is no failure: the owner is a program that runs because the operator wants it, the kernel lets
// nobody else remove its table, and most such tables do not drop. If one does, this line says where to look.
func warnOwned(env *stage.Env, tables []nft.Table) {
	for _, table := range tables {
		env.Log.Warn("table %s is owned by %s and stays: if it keeps kubelet's port 10250 or pods from being reached, stop that program",
			table, owner(env.Root, table.Owner))
	}
}

// owner names the process behind a netlink port, which usually is its pid.
func owner(root string, port uint32) string {
	name, err := os.ReadFile(paths.At(root, fmt.Sprintf("/proc/%d/comm", port)))
	if err != nil {
		return fmt.Sprintf("netlink port %d", port)
	}
	return fmt.Sprintf("%s (pid %d)", strings.TrimSpace(string(name)), port)
}

// warnLegacy looks at the older backend, whose rules act beside nftables' and cannot be seen here. A table is
// listed from its first use on, with rules or without, so this is no proof of trouble.
func warnLegacy(env *stage.Env) error {
	for _, legacy := range []struct{ file, program string }{
		{"/proc/net/ip_tables_names", "iptables-legacy"},
		{"/proc/net/ip6_tables_names", "ip6tables-legacy"},
	} {
		data, err := os.ReadFile(paths.At(env.Root, legacy.file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if tables := strings.Fields(string(data)); len(tables) > 0 {
			env.Log.Warn("%s has tables %s, which are left as they are: `%s-save` shows their rules",
				legacy.program, strings.Join(tables, ", "), legacy.program)
		}
	}
	return nil
}
