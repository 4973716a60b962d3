package tree

import "unbounded/internal/removal"

// ErrMount is in the chain when removing met a mount point. Everything on the mount is untouched.
var ErrMount = removal.ErrMount

// Remove removes the tree at dir, which may be absent, without following links or crossing a mount, and syncs its folder.
func Remove(dir string) error {
	_, err := removal.Until(removal.Never, dir)
	return err
}
