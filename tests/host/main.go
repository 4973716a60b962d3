package host

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Main runs the tests of a package that boots hosts. It also is the entry of the
// processes that stand behind a host, and it fails when a test left something.
func Main(m *testing.M) int {
	Enter()
	code := m.Run()
	if err := Leave(); err != nil {
		fmt.Fprintf(os.Stderr, "left behind: %v\n", err)
		return 1
	}
	return code
}

// Enter is the first call of a program that boots hosts.
func Enter() { become(); entered.Store(true) }

var entered atomic.Bool

// Leave is its last call: it removes what the hosts shared, and complains about
// what they should have removed.
func Leave() error {
	if product := installed.Swap(nil); product != nil {
		if err := product.remove(); err != nil {
			return err
		}
	}
	var left []error
	mine := ownPrefix() + "*"
	places, err := hierarchies()
	if err != nil {
		return err
	}
	for _, place := range append(places, groundDir()) {
		pattern := filepath.Join(place, mine)
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, path := range found {
			left = append(left, errors.New(path))
		}
	}
	return errors.Join(left...)
}

// groundDir is where the folders of running hosts are: on a disk, because hosts
// put overlays and extended attributes there.
func groundDir() string {
	if dir := os.Getenv("UNBOUNDED_GROUND"); dir != "" {
		return dir
	}
	return "/var/tmp/unbounded-ground"
}

// ownPrefix begins the name of everything that this process makes.
func ownPrefix() string { return fmt.Sprintf("unbounded-ground.%d.", os.Getpid()) }

// newFolder makes a folder that is locked as long as it is in use: that is how
// scripts/leftovers tells it from one that was left behind.
func newFolder() (string, error) {
	if !entered.Load() {
		return "", errors.New(`the package has no "func TestMain(m *testing.M) { os.Exit(host.Main(m)) }"`)
	}
	if err := os.MkdirAll(groundDir(), 0o700); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(groundDir(), ownPrefix())
	if err != nil {
		return "", err
	}
	return dir, lockFolder(dir)
}

// lockFolder shares a lock on a folder until the end of the process.
func lockFolder(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	folderLocks.Store(dir, file)
	return unix.Flock(int(file.Fd()), unix.LOCK_SH)
}

// folderLocks keeps the locks from the garbage collector.
var folderLocks sync.Map

// Artefact is the path of something that scripts/testground builds, which it does
// when it has to: host-bookworm, host-trixie, node-image, kube, mirror.
func Artefact(name string) (string, error) {
	command := exec.Command(filepath.Join(checkout(), "scripts/testground"), "path", name)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("build %s: %w; run scripts/testground %s to see why", name, err, name)
	}
	return strings.TrimSpace(string(out)), nil
}

// ArtefactVersion is the version of a part of an artefact, as its build noted it.
func ArtefactVersion(artefact, part string) (string, error) {
	dir, err := Artefact(artefact)
	if err != nil {
		return "", err
	}
	list, err := os.ReadFile(filepath.Join(dir, "versions"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(list)) {
		if version, found := strings.CutPrefix(line, part+" "); found {
			return strings.TrimSpace(version), nil
		}
	}
	return "", fmt.Errorf("%s has no version of %s", artefact, part)
}

// checkout is the folder of the sources, at or above the working directory.
func checkout() string {
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "scripts/testground")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return "."
}

// product is an installation of the unit under test.
type product struct {
	dir    string
	remove func() error
}

var (
	installing sync.Mutex
	installed  atomic.Pointer[product]
)

// Product is a folder in which "make install DESTDIR=" has put the unit under test.
// It is made once in a process; UNBOUNDED_PRODUCT names one that is there already.
func Product() (string, error) {
	installing.Lock()
	defer installing.Unlock()
	if p := installed.Load(); p != nil {
		return p.dir, nil
	}
	if dir := os.Getenv("UNBOUNDED_PRODUCT"); dir != "" {
		installed.Store(&product{dir: dir, remove: func() error { return nil }})
		return dir, nil
	}
	dir, err := newFolder()
	if err != nil {
		return "", err
	}
	remove, err := hireJanitor(dir)
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockInstall()
	if err != nil {
		return "", err
	}
	defer unlock()
	install := exec.Command("make", "-C", checkout(), "--no-print-directory", "install", "DESTDIR="+dir, "PREFIX=/opt/unbounded")
	if out, err := install.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("make install: %w\n%s", err, out), remove())
	}
	installed.Store(&product{dir: dir, remove: remove})
	return dir, nil
}

// hireJanitor has a folder removed when this process ends, or the function is called.
func hireJanitor(dir string) (remove func() error, err error) {
	janitor, err := self(janitorName, spec{Dir: dir})
	if err != nil {
		return nil, err
	}
	janitor.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	life, err := janitor.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := janitor.Start(); err != nil {
		return nil, err
	}
	return func() error { return errors.Join(life.Close(), janitor.Wait()) }, nil
}

// lockInstall keeps test processes from building in the checkout at the same time.
func lockInstall() (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(groundDir(), "install.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return func() { _ = file.Close() }, unix.Flock(int(file.Fd()), unix.LOCK_EX)
}

func randomHex(n int) string {
	bytes := make([]byte, n)
	_, _ = rand.Read(bytes) // never fails
	return hex.EncodeToString(bytes)
}
