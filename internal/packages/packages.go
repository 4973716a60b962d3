// Package packages knows what of the distribution a host needs, and installs it on hosts that have a package manager.
package packages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"unbounded/internal/paths"
	"unbounded/internal/run"
)

const (
	// lockLimit is how long another package manager is waited for: on a first boot cloud-init's, or a timer's.
	lockLimit = 5 * time.Minute
	lockTick  = 2 * time.Second
	attempts  = 3
	pause     = 10 * time.Second // before another attempt
)

// Runner runs a program of the host.
type Runner func(ctx context.Context, env []string, program string, args ...string) ([]byte, error)

// Manager is a package manager.
type Manager struct {
	Name string // of its program
	// Status is told what is waited for; it may be nil.
	Status func(format string, args ...any)

	root  string
	run   Runner
	pause time.Duration
}

// apt is the one that is driven by more than "install".
const apt = "apt-get"

// Names are the programs of the package managers that are known. A host with tdnf may have dnf too.
func Names() []string { return []string{apt, "tdnf", "dnf"} }

// Find returns the package manager of the host below root.
func Find(root string) (*Manager, bool) {
	for _, name := range Names() {
		if _, found := run.Find(root, name); found {
			return &Manager{Name: name, root: root, run: run.Command, pause: pause}, true
		}
	}
	return nil, false
}

// Install installs packages and what they depend on, and asks nothing. It waits, for a limited time, for
// another one that works, and tries again when the mirror does not answer. No service is restarted for it.
func (m *Manager) Install(ctx context.Context, names ...string) error {
	var err error
	for attempt := range attempts {
		if attempt > 0 {
			m.status("%v; trying again", err)
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(m.pause):
			}
		}
		if err = m.once(ctx, names); err == nil || ctx.Err() != nil || errors.Is(err, run.ErrMissing) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("install %s: %w; is the package mirror reachable?", strings.Join(names, " "), err)
	}
	return nil
}

func (m *Manager) once(ctx context.Context, names []string) error {
	m.status("installing %s", strings.Join(names, " "))
	if m.Name != apt {
		args := append([]string{"install", "-y"}, names...)
		_, err := m.run(ctx, run.Env(), m.Name, args...) // refreshes its lists itself
		return err
	}
	// Lists may be fresh enough, and may be all there is on a host without a network.
	first := m.apt(ctx, append([]string{"install", "--no-install-recommends"}, names...)...)
	if first == nil {
		return nil
	}
	if err := m.waitLists(ctx); err != nil {
		return err
	}
	// A source that does not answer fails the update, but may not be the one that is needed.
	update := m.apt(ctx, "-o", "APT::Update::Error-Mode=any", "update")
	err := m.apt(ctx, append([]string{"install", "--no-install-recommends"}, names...)...)
	if err != nil && update != nil {
		return update // why the package is unknown
	}
	return err
}

func (m *Manager) apt(ctx context.Context, args ...string) error {
	env := run.Env(
		"DEBIAN_FRONTEND=noninteractive", "APT_LISTCHANGES_FRONTEND=none",
		"NEEDRESTART_SUSPEND=1", "NEEDRESTART_MODE=l", // a restart of services would be somebody else's decision
	)
	args = append([]string{
		"-y", "-q",
		"-o", fmt.Sprintf("DPkg::Lock::Timeout=%d", int(lockLimit.Seconds())),
		"-o", "Dpkg::Options::=--force-confold",
	}, args...)
	_, err := m.run(ctx, env, apt, args...)
	return err
}

// waitLists waits until nobody holds the lock of apt's lists, which apt itself does not wait for. The lock
// belongs to a process and gives no event, so it is asked for.
func (m *Manager) waitLists(ctx context.Context) error {
	limit, done := context.WithTimeoutCause(ctx, lockLimit, errors.New("the lock was held for "+lockLimit.String()))
	defer done()
	tick := time.NewTicker(lockTick)
	defer tick.Stop()
	for {
		pid, err := holder(paths.At(m.root, "/var/lib/apt/lists/lock"))
		if pid == 0 || err != nil {
			return err
		}
		m.status("waiting for process %d, which updates apt's lists", pid)
		select {
		case <-limit.Done():
			return fmt.Errorf("wait for process %d to release apt's lists: %w", pid, context.Cause(limit))
		case <-tick.C:
		}
	}
}

// holder is the process that holds a POSIX lock on the file at path, 0 if none does.
func holder(path string) (int, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(file.Fd(), unix.F_GETLK, &lock)
	if err = errors.Join(err, file.Close()); err != nil {
		return 0, fmt.Errorf("look at lock %s: %w", path, err)
	}
	if lock.Type == unix.F_UNLCK {
		return 0, nil
	}
	return int(lock.Pid), nil
}

func (m *Manager) status(format string, args ...any) {
	if m.Status != nil {
		m.Status(format, args...)
	}
}
