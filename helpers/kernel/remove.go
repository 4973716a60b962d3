package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"unbounded/internal/before"
	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/sysctl"
)

// remove puts files and live values back. Loaded modules stay: others may use them by now, and one that
// is in use cannot be unloaded. In the boot in which we changed a value it becomes what it was. In a later
// one the host's own files of sysctl.d have the first word, since they would have been applied at this boot
// if ours had not been there; keys that they do not set become what they were.
func remove(_ context.Context, env *stage.Env) error {
	image, err := before.Load(env.Root, concern)
	if err != nil {
		return err
	}
	if len(image.Entries()) == 0 {
		return removeUnnoted(env)
	}
	if err := restoreFiles(env, image); err != nil {
		return err
	}
	if err := restoreLive(env, image); err != nil {
		return err
	}
	if err := restoreHidden(env, image); err != nil {
		return err
	}
	return image.Discard()
}

func restoreFiles(env *stage.Env, image *before.Image) error {
	restore, left, err := image.Decide(func(e before.Entry) (before.State, error) {
		switch e.Kind {
		case before.File:
			return before.Read(env.Root, e.Object)
		case before.Sysctl:
			return e.Before, nil
		default:
			return before.State{}, exit.As(exit.Refused, fmt.Errorf("it is of kind %s, which this release cannot restore: use a newer one", e.Kind))
		}
	})
	if err != nil {
		return err
	}
	for _, e := range left {
		env.Log.Notice("%s was changed by somebody else since and is left as it is", e.Object)
	}
	for _, e := range restore {
		if e.Kind != before.File {
			continue
		}
		if err := before.RestoreFile(env.Root, e); err != nil {
			return fmt.Errorf("restore %s: %w", e.Object, err)
		}
		env.Log.Changed(e.Object, "as it was before")
	}
	return nil
}

// restoreLive puts values back when our file does not set them any more. ip_forward is first: the kernel gives every link its
// value, and all.accept_redirects the opposite.
func restoreLive(env *stage.Env, image *before.Image) error {
	targets, err := targets(env.Root, image)
	if err != nil {
		return err
	}
	restore, left, err := image.Decide(func(e before.Entry) (before.State, error) {
		now, err := live(env.Root, e)
		if err == nil && now.Same(before.Text(targets[e.Object])) && !slices.ContainsFunc(e.Ours, now.Same) {
			now = e.Before // a killed attempt has done it
		}
		return now, err
	})
	if err != nil {
		return err
	}
	for _, e := range left {
		if e.Kind == before.Sysctl {
			env.Log.Notice("%s was changed by somebody else since and is left as it is", e.Object)
		}
	}
	restore = slices.DeleteFunc(restore, func(e before.Entry) bool { return e.Kind != before.Sysctl })
	slices.SortStableFunc(restore, func(a, b before.Entry) int { return order(a) - order(b) })
	if err := keepDragged(image, restore, targets); err != nil {
		return err
	}
	for _, e := range restore {
		now, err := live(env.Root, e)
		if err != nil {
			return err
		}
		target := targets[e.Object]
		if now.Absent || now.Value == target {
			continue
		}
		if err := sysctl.Write(env.Root, e.Object, target); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		env.Log.Changed(e.Object, now.Value+" → "+target)
	}
	return nil
}

func order(e before.Entry) int {
	if e.Object == forwarding {
		return 0
	}
	return 1
}

// targets are the values that the entries of image are to have, by key.
func targets(root string, image *before.Image) (map[string]string, error) {
	targets := map[string]string{}
	var later []string
	for _, e := range image.Entries() {
		if e.Kind == before.Sysctl {
			targets[e.Object] = e.Before.Value
			if !image.SameBoot(e) {
				later = append(later, e.Object)
			}
		}
	}
	if len(later) == 0 {
		return targets, nil
	}
	configured, err := sysctl.Configured(root, later)
	if err != nil {
		return nil, err
	}
	forward, differs := configured[forwarding]
	differs = differs && forward != targets[forwarding]
	for _, key := range later {
		if value, ok := configured[key]; ok {
			targets[key] = value
		} else if value, ok := dragged(key, forward); ok && differs {
			targets[key] = value
		}
	}
	return targets, nil
}

// dragged is the value that the kernel gives to key when ip_forward becomes forward, if it does.
func dragged(key, forward string) (value string, ok bool) {
	switch {
	case strings.HasPrefix(key, linkPrefix) && strings.HasSuffix(key, linkSuffix):
		return forward, true
	case key == acceptRedirects && forward == "0":
		return "1", true
	case key == acceptRedirects:
		return "0", true
	}
	return "", false
}

// live reads the parameter of e. One that is gone with its link, or was when e was noted, needs nothing.
func live(root string, e before.Entry) (before.State, error) {
	if e.Kind != before.Sysctl || e.Before.Value == "" {
		return e.Before, nil
	}
	value, err := sysctl.Read(root, e.Object)
	if errors.Is(err, fs.ErrNotExist) {
		return e.Before, nil
	}
	return before.Text(value), err
}

// keepDragged notes, before ip_forward is written, what that makes of the others that are about to be restored: killed in
// between, the next attempt must not take those values for somebody else's.
func keepDragged(image *before.Image, restore []before.Entry, targets map[string]string) error {
	if len(restore) == 0 || restore[0].Object != forwarding {
		return nil
	}
	for _, e := range restore[1:] {
		if value, ok := dragged(e.Object, targets[forwarding]); ok {
			image.Keep(before.Change{Kind: e.Kind, Object: e.Object, Now: e.Ours[0], Want: before.Text(value)})
		}
	}
	return image.Save()
}

// removeUnnoted removes what shows by its content whose it is: ours, should its before-image be lost, and the file
// of the public agent, which keeps none.
func removeUnnoted(env *stage.Env) error {
	for _, file := range []struct {
		path string
		mine func(string) bool
	}{
		{modulesFile, func(text string) bool { return text == modulesContent() }},
		{sysctlFile, func(text string) bool {
			return text == sysctlContent() || env.Record.Foreign() && slices.Equal(sorted(sysctl.Parse([]byte(text))), sorted(settings()))
		}},
	} {
		now, err := before.Read(env.Root, file.path)
		if err != nil {
			return err
		}
		if now.Absent {
			continue
		}
		if !file.mine(now.Value) {
			env.Log.Notice("%s is not as an installation made it and is left as it is", file.path)
			continue
		}
		if _, err := durable.Remove(paths.At(env.Root, file.path)); err != nil {
			return err
		}
		env.Log.Changed(file.path, "removed; nobody noted the kernel parameters before it, which become the host's own at the next boot")
	}
	return nil
}

func sorted(all []sysctl.Setting) []sysctl.Setting {
	slices.SortFunc(all, func(a, b sysctl.Setting) int { return strings.Compare(a.Key, b.Key) })
	return all
}
