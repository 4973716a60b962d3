package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"unbounded/internal/before"
	"unbounded/internal/exit"
	"unbounded/internal/kmod"
	"unbounded/internal/paths"
	"unbounded/internal/run"
	"unbounded/internal/stage"
	"unbounded/internal/sysctl"
)

const (
	concern     = "kernel"
	modulesFile = "/etc/modules-load.d/99-unbounded.conf"
	sysctlFile  = "/etc/sysctl.d/99-kubernetes.conf"
	forwarding  = "net.ipv4.ip_forward"

	// What the kernel changes together with it.
	acceptRedirects = "net.ipv4.conf.all.accept_redirects"
	linkPrefix      = "net.ipv4.conf."
	linkSuffix      = ".forwarding"

	mark = "# Written by " + paths.KernelUnit + ". Undone by " + paths.ResetTarget + "."
)

// modules are what the kernel must be able to do. A bridge's folder is in every network namespace once br_netfilter is there.
func modules() []kmod.Module {
	return []kmod.Module{
		{Name: "overlay", FileSystem: "overlay"},
		{Name: "br_netfilter", Path: "/proc/sys/net/bridge"},
	}
}

// settings are the kernel parameters, in the order of the file. Those of vm and
// kernel are what kubelet asks for with protectKernelDefaults.
func settings() []sysctl.Setting {
	return []sysctl.Setting{
		{Key: "vm.overcommit_memory", Value: "1"},
		{Key: "vm.panic_on_oom", Value: "0"},
		{Key: "kernel.panic", Value: "10"},
		{Key: "kernel.panic_on_oops", Value: "1"},
		{Key: "kernel.keys.root_maxkeys", Value: "1000000"},
		{Key: "kernel.keys.root_maxbytes", Value: "25000000"},
		{Key: "net.bridge.bridge-nf-call-iptables", Value: "1"},
		{Key: "net.bridge.bridge-nf-call-ip6tables", Value: "1"},
		{Key: forwarding, Value: "1"},
		{Key: "net.ipv4.conf.all.src_valid_mark", Value: "1"},
		{Key: "net.ipv4.conf.default.src_valid_mark", Value: "1"},
		{Key: "net.ipv4.conf.all.rp_filter", Value: "0"},
		{Key: "net.ipv4.conf.default.rp_filter", Value: "0"},
	}
}

func modulesContent() string {
	lines := []string{mark}
	for _, module := range modules() {
		lines = append(lines, module.Name)
	}
	return strings.Join(lines, "\n") + "\n"
}

func sysctlContent() string {
	lines := []string{mark}
	for _, s := range settings() {
		lines = append(lines, s.Key+" = "+s.Value)
	}
	return strings.Join(lines, "\n") + "\n"
}

func converge(ctx context.Context, env *stage.Env) error {
	return ensure(ctx, env, modprobe)
}

func ensure(ctx context.Context, env *stage.Env, load kmod.Loader) error {
	image, err := before.Load(env.Root, concern)
	if err != nil {
		return err
	}
	// The files first: a module that cannot be loaded today is found by the next boot.
	if err := ensureFiles(env, image); err != nil {
		return err
	}
	for _, module := range modules() {
		loaded, err := module.Ensure(ctx, env.Root, load)
		if err != nil {
			return err
		}
		if loaded {
			env.Log.Changed(module.Name, "module loaded")
		}
	}
	if err := ensureLive(env, image); err != nil {
		return err
	}
	return warnOverrides(env)
}

func ensureFiles(env *stage.Env, image *before.Image) error {
	var files []before.Change
	for _, file := range []struct{ path, content string }{
		{modulesFile, modulesContent()}, {sysctlFile, sysctlContent()},
	} {
		change, err := before.FileChange(env.Root, file.path, file.content)
		if err != nil {
			return err
		}
		files = append(files, change)
	}
	image.Note(files...)
	if err := image.Save(); err != nil {
		return err
	}
	for _, file := range files {
		changed, err := before.ApplyFile(env.Root, file)
		if err != nil {
			return fmt.Errorf("write %s: %w", file.Object, err)
		}
		if changed {
			env.Log.Changed(file.Object, "written")
		}
	}
	return nil
}

// ensureLive sets the values that differ and reads them back.
func ensureLive(env *stage.Env, image *before.Image) error {
	changes, err := plan(settings(), func(key string) (string, error) { return read(env.Root, key) })
	if err != nil || len(changes) == 0 {
		return err
	}
	image.Note(changes...)
	for _, change := range changes {
		if change.Object == forwarding {
			tree, err := tree(env.Root)
			if err != nil {
				return err
			}
			image.Keep(tree...)
		}
	}
	if err := image.Save(); err != nil {
		return err
	}
	for _, change := range changes {
		if err := sysctl.Write(env.Root, change.Object, change.Want.Value); err != nil {
			return err
		}
		env.Log.Changed(change.Object, change.Now.Value+" → "+change.Want.Value)
	}
	return nil
}

// plan is what has to change of the live values that get reads.
func plan(want []sysctl.Setting, get func(key string) (string, error)) ([]before.Change, error) {
	var changes []before.Change
	for _, s := range want {
		now, err := get(s.Key)
		if err != nil {
			return nil, err
		}
		change := before.Change{Kind: before.Sysctl, Object: s.Key, Now: before.Text(now), Want: before.Text(s.Value)}
		if change.Needed() {
			changes = append(changes, change)
		}
	}
	return changes, nil
}

func read(root, key string) (string, error) {
	value, err := sysctl.Read(root, key)
	if errors.Is(err, fs.ErrNotExist) {
		return "", exit.As(exit.Refused, fmt.Errorf("kernel parameter %s does not exist: %s", key, provider(key)))
	}
	return value, err
}

// provider says where a missing parameter would come from.
func provider(key string) string {
	if strings.HasPrefix(key, "net.bridge.") {
		return "module br_netfilter has it, and is not in effect in this network namespace; run `modprobe br_netfilter`"
	}
	return "boot a kernel that has it"
}

// tree is what the kernel changes of its own accord when ip_forward becomes 1: the
// forwarding of every link, and whether redirects are accepted. It is kept whole: putting ip_forward
// back changes even those that have this value today.
func tree(root string) ([]before.Change, error) {
	files, err := filepath.Glob(paths.At(root, "/proc/sys/net/ipv4/conf/*/forwarding"))
	if err != nil {
		return nil, err
	}
	var changes []before.Change
	for _, file := range files {
		link := filepath.Base(filepath.Dir(file))
		if link != "all" { // that one is ip_forward itself
			changes = append(changes, before.Change{
				Kind: before.Sysctl, Object: linkPrefix + strings.ReplaceAll(link, ".", "/") + linkSuffix, Want: before.Text("1"),
			})
		}
	}
	changes = append(changes, before.Change{
		Kind: before.Sysctl, Object: acceptRedirects, Want: before.Text("0"),
	})
	for i := range changes {
		now, err := sysctl.Read(root, changes[i].Object)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the link may go away meanwhile
			return nil, err
		}
		changes[i].Now = before.Text(now)
	}
	return changes, nil
}

func warnOverrides(env *stage.Env) error {
	overrides, err := sysctl.Overrides(env.Root, sysctlFile, settings())
	for _, o := range overrides {
		env.Log.Warn("%s sets %s = %s after %s, and wins at the next boot: remove it there", o.File, o.Key, o.Value, sysctlFile)
	}
	return err
}

func modprobe(ctx context.Context, name string) error {
	_, err := run.Command(ctx, run.Env(), "modprobe", "--", name)
	return err
}
