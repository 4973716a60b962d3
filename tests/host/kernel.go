package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// sharedParameters are the kernel parameters that a bootstrap changes and that no
// namespace separates: a host under test changes them for the whole machine.
var sharedParameters = []string{
	"vm/overcommit_memory",
	"vm/panic_on_oom",
	"kernel/panic",
	"kernel/panic_on_oops",
	"kernel/keys/root_maxkeys",
	"kernel/keys/root_maxbytes",
}

// kernelHold is a share in the machine's kernel parameters. The first to come
// saves them, the last to go restores them.
type kernelHold struct {
	lock  *os.File
	saved string
}

func holdKernel(ground string) (*kernelHold, error) {
	lock, err := os.OpenFile(filepath.Join(ground, "kernel.lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	hold := &kernelHold{lock: lock, saved: filepath.Join(ground, "kernel.json")}
	for absent := true; absent && err == nil; {
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = hold.save()
		}
		if err == nil {
			err = unix.Flock(int(lock.Fd()), unix.LOCK_SH)
		}
		if err == nil {
			_, gone := os.Stat(hold.saved)
			absent = gone != nil
		}
		if absent && err == nil { // whoever was last has just restored them: begin again as the first
			err = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("hold the kernel parameters: %w", err), lock.Close())
	}
	return hold, nil
}

// save writes the parameters down, unless a killed ground left them to be restored.
func (k *kernelHold) save() error {
	if _, err := os.Stat(k.saved); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	values := map[string]string{}
	for _, name := range sharedParameters {
		value, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			return err
		}
		values[name] = strings.TrimSpace(string(value))
	}
	encoded, err := json.Marshal(values)
	if err != nil {
		return err
	}
	return os.WriteFile(k.saved, encoded, 0o600)
}

func (k *kernelHold) release() {
	defer k.lock.Close()
	if unix.Flock(int(k.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return // another host still runs
	}
	encoded, err := os.ReadFile(k.saved)
	if err != nil {
		return
	}
	var values map[string]string
	if json.Unmarshal(encoded, &values) != nil {
		return
	}
	for name, value := range values {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644); err != nil {
			fmt.Fprintf(os.Stderr, "restore %s: %v\n", name, err)
		}
	}
	_ = os.Remove(k.saved)
}
