// Package release makes releases for tests, and looks at them.
package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"unbounded/tests/host"
)

// Version is that of the releases made here. Neither it nor their time is from git: a test makes the release of what is
// there, committed or not.
const Version = "v0.0.0-test"

const epoch = "1700000000"

// Make makes a release of the checkout in dir for arches, as scripts/release does, in an environment with more.
func Make(ctx context.Context, dir, out, arches string, more ...string) error {
	command := exec.CommandContext(ctx, "scripts/release")
	command.Dir = dir
	command.Env = append(os.Environ(), append([]string{"VERSION=" + Version, "SOURCE_DATE_EPOCH=" + epoch, "ARCHES=" + arches, "OUT=" + out}, more...)...)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("make a release: %w\n%s", err, output)
	}
	return nil
}

// Image makes the system extension of this checkout below a folder of the test's and says where it is.
// UNBOUNDED_EXTENSION names one that is there already.
func Image(t host.T, dir string) string {
	t.Helper()
	if made := os.Getenv("UNBOUNDED_EXTENSION"); made != "" {
		return made
	}
	if err := Make(t.Context(), "../..", filepath.Join(dir, "dist"), "amd64"); err != nil {
		t.Fatalf("%v", err)
	}
	return filepath.Join(dir, "dist", "unbounded-"+Version+"-amd64.raw")
}

// Unpack makes a folder of an image.
func Unpack(t host.T, image, dir string) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "unsquashfs", "-quiet", "-no-progress", "-dest", dir, image).CombinedOutput()
	if err != nil {
		t.Fatalf("unpack %s: %v\n%s", image, err, output)
	}
}

// Copy copies the checkout in dir to another folder, without what git ignores.
func Copy(ctx context.Context, dir, to string) error {
	list := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = dir
	names, err := list.Output()
	if err != nil {
		return fmt.Errorf("list the checkout: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		err := copyFile(filepath.Join(dir, name), filepath.Join(to, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) { // removed, and not yet committed
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if info.Mode()&os.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		return errors.Join(err, os.Symlink(target, to))
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, info.Mode().Perm())
}
