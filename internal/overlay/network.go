package overlay

import (
	"errors"
	"fmt"

	"unbounded/internal/exit"
	"unbounded/internal/link"
	"unbounded/internal/nft"
)

// attempts to remove things while others write.
const attempts = 5

// Network is the network of a host.
type Network struct {
	links  *link.Conn
	filter *nft.Conn // nil: the kernel has none
	kinds  Kinds
}

// Dial connects to network namespace netns, an open file; 0 is the caller's own.
func Dial(netns int, kinds Kinds) (*Network, error) {
	links, err := link.Dial(netns)
	if err != nil {
		return nil, err
	}
	filter, err := nft.Dial(netns)
	if err != nil && !errors.Is(err, nft.ErrUnsupported) {
		_ = links.Close()
		return nil, explain(err)
	}
	return &Network{links, filter, kinds}, nil
}

// Close ends the connections.
func (n *Network) Close() {
	_ = n.links.Close()
	if n.filter != nil {
		_ = n.filter.Close()
	}
}

func explain(err error) error {
	if errors.Is(err, nft.ErrNotPermitted) || errors.Is(err, link.ErrNotPermitted) {
		return exit.As(exit.NotPermitted, fmt.Errorf("%w; run as root", err))
	}
	return err
}

// inventory is everything that links, routes and rules are told by. It is whole, or an error.
func (n *Network) inventory() (i Inventory, err error) {
	if i.Links, err = n.links.Links(); err != nil {
		return i, explain(err)
	}
	if i.Routes, err = n.links.Routes(i.Links); err != nil {
		return i, explain(err)
	}
	i.Rules, err = n.links.Rules()
	return i, explain(err)
}

// Names are the names of all there is that a node could have made, whoever did.
func (n *Network) Names() ([]string, error) {
	inventory, err := n.inventory()
	if err != nil {
		return nil, err
	}
	all := inventory.Names(n.kinds)
	if n.filter == nil {
		return all, nil
	}
	ruleset, err := n.filter.Save()
	if err != nil {
		return nil, explain(err)
	}
	more, err := ruleset.Names()
	return append(all, more...), err
}

// Before is what there was before the node.
type Before struct {
	Known bool                     // that can be told
	Has   func(name string) bool   // a link, a route or a rule of that name
	Part  func(part nft.Part) bool // a part of the packet filter
}

// Log is told what was removed, and what is left and why.
type Log struct {
	Removed func(object string)
	Left    func(line string)
}

// Remove removes what is the node's. Everything is looked at before anything is removed: what cannot be read
// authorises nothing. Routes and rules go first, since some are told by others, and links before the packet filter:
// a network that has lost its filter is open.
func (n *Network) Remove(before Before, log Log) error {
	if _, err := n.Names(); err != nil {
		return err
	}
	if err := n.removeLinks(before, log); err != nil {
		return err
	}
	return n.removeFilter(before, log)
}

// removeLinks removes routes, rules and links, and looks again: the kernel may have understood less than was said.
func (n *Network) removeLinks(before Before, log Log) error {
	var plan Plan
	for range attempts {
		inventory, err := n.inventory()
		if err != nil {
			return err
		}
		plan = inventory.Plan(n.kinds, before.Known, before.Has)
		for _, line := range plan.Left {
			log.Left(line)
		}
		if plan.Empty() {
			return nil
		}
		if err := n.apply(plan, log); err != nil {
			return explain(err)
		}
	}
	return fmt.Errorf("%s comes back, or cannot be removed: `ip monitor` shows who makes it", plan.first())
}

// apply removes what is planned, up to the first that is refused.
func (n *Network) apply(plan Plan, log Log) error {
	done := func(object fmt.Stringer, removed bool, err error) error {
		if err != nil {
			return fmt.Errorf("remove %s: %w", object, err)
		}
		if removed {
			log.Removed(object.String())
		}
		return nil
	}
	for _, r := range plan.Routes {
		removed, err := n.links.RemoveRoute(r)
		if err := done(r, removed, err); err != nil {
			return err
		}
	}
	for _, r := range plan.Rules {
		removed, err := n.links.RemoveRule(r)
		if err := done(r, removed, err); err != nil {
			return err
		}
	}
	for _, l := range plan.Links {
		removed, err := n.links.RemoveLink(l)
		if err := done(l, removed, err); err != nil {
			return err
		}
	}
	return nil
}

// removeFilter removes from the packet filter, again while others write to it.
func (n *Network) removeFilter(before Before, log Log) error {
	if n.filter == nil {
		return nil // a kernel without a packet filter has nothing of a node in it
	}
	for range attempts {
		ruleset, err := n.filter.Save()
		if err != nil {
			return explain(err)
		}
		parts, err := ruleset.Node(before.Known, before.Part)
		if err != nil || len(parts) == 0 {
			return err
		}
		err = n.filter.Remove(ruleset.Generation, parts)
		if errors.Is(err, nft.ErrChanged) {
			continue
		}
		if err != nil {
			return explain(err)
		}
		for _, part := range parts {
			log.Removed(part.String())
		}
	}
	return errors.New("the packet filter is written to again and again: stop the service that does it (`nft monitor` shows what it writes)")
}
