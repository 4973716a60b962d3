// Package before keeps before-images: what the host had before a concern changed it.
//
// A concern has one file, paths.Before/<concern>.json (0600), with one entry for each
// object that it changes. The order is: Note every change, Save, then change. So a kill
// between Save and the change leaves an entry whose object still is as before, which is
// what it says. Restoring decides for all entries whether they are still ours, then
// puts them back in their order: one may drag others along.
package before

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/paths"
)

// Kind says what an object is, and so how it is restored.
type Kind string

// The kinds. Sysctl, Unit, Swap and Ruleset are state of the running system: it can be put
// back exactly only in the boot that it was read in (Entry.BootID); in a later one the host's own
// services make it.
const (
	File    Kind = "file"    // a path, whole: content, mode, owner, extended attributes
	Line    Kind = "line"    // one line of a file, edited by a reversible mark; the object is path:line
	Key     Kind = "key"     // one key of a JSON file, as JSON text; the object is path:key
	Sysctl  Kind = "sysctl"  // a live kernel parameter; the object is its key, as in sysctl.d
	Unit    Kind = "unit"    // whether a unit runs: active or inactive
	Swap    Kind = "swap"    // an active swap area: its priority, below 0 if the kernel gave it
	Ruleset Kind = "ruleset" // an nftables table: its netlink messages
)

// running tells whether an object is state of the running system, which ends with its boot.
func (k Kind) running() bool { return k == Sysctl || k == Unit || k == Swap || k == Ruleset }

// State is how an object was or is to be. Value and Bytes are alternatives: text, and what is none.
type State struct {
	Absent bool   `json:"absent,omitempty"`
	Value  string `json:"value,omitempty"`
	Bytes  []byte `json:"bytes,omitempty"`

	// Of a file that was there.
	Mode   fs.FileMode       `json:"mode,omitempty"`
	UID    uint32            `json:"uid,omitempty"`
	GID    uint32            `json:"gid,omitempty"`
	Xattrs map[string][]byte `json:"xattrs,omitempty"`
	// Link is the target of a symbolic link that was there.
	Link string `json:"link,omitempty"`
	// UnitFile is how a unit was enabled.
	UnitFile string `json:"unitFile,omitempty"`
	// MissingDir is the topmost folder that had to be made for an absent file.
	MissingDir string `json:"missingDir,omitempty"`
}

// Text is the state of an object whose value is s.
func Text(s string) State { return State{Value: s} }

// Gone is the state of an object that is not there.
func Gone() State { return State{Absent: true} }

// Same tells whether two states are the same as far as we set it: not by mode or owner,
// so that a chmod of our own file does not make it the operator's, nor by how a unit is enabled.
func (s State) Same(other State) bool {
	return s.Absent == other.Absent && s.Value == other.Value && s.Link == other.Link && bytes.Equal(s.Bytes, other.Bytes)
}

// Change is one object that is, or is to be made, ours.
type Change struct {
	Kind   Kind
	Object string
	Now    State
	Want   State
}

// Needed tells whether there is anything to do.
func (c Change) Needed() bool { return !c.Now.Same(c.Want) }

// Entry is the before-image of one object.
type Entry struct {
	Kind   Kind   `json:"kind"`
	Object string `json:"object"`
	Before State  `json:"before"`
	// Ours are the states that we gave it, newest first: releases may differ in what they want,
	// and a kill may leave the older one in place.
	Ours   []State `json:"ours"`
	BootID string  `json:"bootID"` // the boot in which Before was read
}

// Image is the before-image of one concern.
type Image struct {
	path    string
	bootID  string
	entries []Entry
	saved   []byte // as on disk
}

// format is the file. Version changes only when older releases would restore wrongly.
type format struct {
	Version int     `json:"version"`
	Entries []Entry `json:"entries"`
}

const version = 1

// maxSize is more than any ruleset of a host has.
const maxSize = 1 << 30

// refuse is for an image that will not be better the next time.
func refuse(format string, args ...any) error {
	return exit.As(exit.Refused, fmt.Errorf(format+"; move it away if the host need not be given back as it was", args...))
}

// Load reads the before-image of concern on the host below root; a concern that has none yet has an empty one.
func Load(root, concern string) (*Image, error) {
	bootID, err := os.ReadFile(paths.At(root, "/proc/sys/kernel/random/boot_id"))
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	image := &Image{
		path:   filepath.Join(paths.At(root, paths.Before), concern+".json"),
		bootID: strings.TrimSpace(string(bootID)),
	}
	image.saved, err = durable.Read(image.path, maxSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return image, nil
	case errors.Is(err, durable.ErrNotFile):
		return nil, refuse("before-image %w", err)
	case err != nil:
		return nil, fmt.Errorf("read before-image: %w", err)
	}
	var f format
	if err := json.Unmarshal(image.saved, &f); err != nil {
		return nil, refuse("read before-image %s: %w", image.path, err)
	}
	if f.Version != version {
		return nil, refuse("before-image %s has version %d, this release reads %d", image.path, f.Version, version)
	}
	image.entries = f.Entries
	return image, nil
}

// Entries are the entries in the order in which they are to be restored.
func (i *Image) Entries() []Entry { return slices.Clone(i.entries) }

// Path is the image's file, for messages.
func (i *Image) Path() string { return i.path }

// Has tells whether object has an entry.
func (i *Image) Has(kind Kind, object string) bool { return i.find(kind, object) >= 0 }

func (i *Image) find(kind Kind, object string) int {
	return slices.IndexFunc(i.entries, func(e Entry) bool { return e.Kind == kind && e.Object == object })
}

// Note takes the changes that are needed into the image. An object that is as we once made it, or
// still as it was before, keeps its entry; one that its owner has changed meanwhile is as he left it from now on.
func (i *Image) Note(changes ...Change) {
	for _, c := range changes {
		if c.Needed() {
			i.Keep(c)
		}
	}
}

// Keep is Note for changes that others make when ours is made: also those that are as we want them are
// kept, because undoing ours moves them too.
func (i *Image) Keep(changes ...Change) {
	for _, c := range changes {
		at := i.find(c.Kind, c.Object)
		if at < 0 {
			i.entries = append(i.entries, Entry{c.Kind, c.Object, c.Now, []State{c.Want}, i.bootID})
			continue
		}
		e := &i.entries[at]
		ours := slices.ContainsFunc(e.Ours, c.Now.Same)
		switch {
		case ours:
		case !c.Now.Same(e.Before):
			e.Before, e.BootID = c.Now, i.bootID
		case c.Kind.running():
			e.BootID = i.bootID // it was read again
		}
		if !slices.ContainsFunc(e.Ours, c.Want.Same) {
			e.Ours = append([]State{c.Want}, e.Ours...)
		}
	}
}

// Save makes what was noted durable. Nothing new writes nothing.
func (i *Image) Save() error {
	if len(i.entries) == 0 {
		return nil
	}
	data, err := json.MarshalIndent(format{version, i.entries}, "", "  ")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if bytes.Equal(data, i.saved) {
		return nil
	}
	if err := durable.SweepFor(i.path); err != nil {
		return err
	}
	if _, err := durable.Write(i.path, data, 0o600); err != nil {
		return fmt.Errorf("save before-image: %w", err)
	}
	i.saved = data
	return nil
}
