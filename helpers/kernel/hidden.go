package main

import (
	"errors"
	"io/fs"
	"strings"

	"unbounded/internal/before"
	"unbounded/internal/stage"
	"unbounded/internal/sysctl"
)

// restoreHidden makes live, after a reboot, what a file of the host says of other parameters than ours: its name is the one that
// ours took, so that boot has read ours in its place. Files of the host that come later win, as at a boot.
func restoreHidden(env *stage.Env, image *before.Image) error {
	keys, err := hidden(env, image)
	if err != nil || len(keys) == 0 {
		return err
	}
	configured, err := sysctl.Configured(env.Root, keys)
	if err != nil {
		return err
	}
	for _, key := range keys {
		now, err := sysctl.Read(env.Root, key)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		want, set := configured[key]
		if !set || now == want {
			continue
		}
		if err := sysctl.Write(env.Root, key, want); err != nil {
			env.Log.Warn("set %s, as %s says: %v, ignoring", key, sysctlFile, err) // systemd-sysctl goes on too
			continue
		}
		env.Log.Changed(key, now+" → "+want)
	}
	return nil
}

// hidden are the parameters in the host's file, if it is there again and this boot has not read it.
func hidden(env *stage.Env, image *before.Image) (keys []string, err error) {
	for _, e := range image.Entries() {
		if e.Kind != before.File || e.Object != sysctlFile || e.Before.Absent || image.SameBoot(e) {
			continue
		}
		now, err := before.Read(env.Root, e.Object)
		if err != nil {
			return nil, err
		}
		if !now.Same(e.Before) { // somebody else's by now
			continue
		}
		for _, s := range sysctl.Parse([]byte(now.Value)) {
			if strings.Contains(s.Key, "*") {
				env.Log.Notice("%s sets %s: what it matches is set by the next boot", sysctlFile, s.Key)
				continue
			}
			keys = append(keys, s.Key)
		}
	}
	return keys, nil
}
