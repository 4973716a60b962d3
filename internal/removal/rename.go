package removal

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"unbounded/internal/durable"
)

// Rename is durable.Rename for a folder that may have flags (chattr +i, +a), which it loses.
func Rename(from, to string) error {
	err := durable.Rename(from, to)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	folder, open := os.OpenFile(from, unix.O_DIRECTORY|unix.O_NOFOLLOW|os.O_RDONLY, 0)
	if open != nil {
		return errors.Join(err, open)
	}
	if flags := errors.Join(setFlags(folder, 0), folder.Close()); flags != nil {
		return errors.Join(err, flags)
	}
	return durable.Rename(from, to)
}
