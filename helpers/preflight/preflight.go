package main

import (
	"context"
	"os"
	"runtime"
	"strings"
	"time"

	"unbounded/internal/check"
	"unbounded/internal/check/host"
	"unbounded/internal/check/remote"
	"unbounded/internal/config"
	"unbounded/internal/fetch"
	"unbounded/internal/oci"
	"unbounded/internal/paths"
	"unbounded/internal/stage"
	"unbounded/internal/systemd"
)

// limit is for each check. A registry behind a name service that is slow takes its time.
const limit = 20 * time.Second

// stageCheck is the stage: it waits for servers until patience is over.
func stageCheck(patience time.Duration) stage.Func {
	return func(ctx context.Context, env *stage.Env) error {
		for _, notice := range env.Config.Notices {
			env.Log.Notice("%s", notice)
		}
		h, _, done := thisHost(ctx, env.Root, env.Record.Root(), env.Config)
		defer done()
		ours := check.Check{Name: "existing-deployment", Look: func(context.Context) []check.Result {
			return []check.Result{check.Pass("install record", "this host is of installation %s", env.Record.InstallID)}
		}}
		results := check.Run(ctx, append(checks(h, env.Config), ours), check.Plan{
			Limit: limit, Patience: patience, Ignore: env.Config.PreflightIgnore,
			Waiting: func(pending []check.Result) { env.Log.Status("waiting: %s", join(pending)) },
		})
		if err := ctx.Err(); err != nil {
			return err
		}
		report := check.NewReport(results, env.Config.PreflightIgnore, false)
		for _, warning := range report.Of(check.Warning) {
			env.Log.Warn("%s", warning)
		}
		return report.Err()
	}
}

func join(results []check.Result) string {
	var lines []string
	for _, result := range results {
		lines = append(lines, result.String())
	}
	return strings.Join(lines, "; ")
}

// thisHost is where to look. Without D-Bus the checks that need it say so.
func thisHost(ctx context.Context, root, prefix string, c *config.Config) (h *host.Host, slots host.Slots, done func()) {
	h = &host.Host{Root: root, Prefix: prefix, Slot: paths.Slots()[0], Config: c, UID: os.Geteuid()}
	manager, err := systemd.Connect(ctx)
	if err != nil {
		return h, host.Slots{}, func() {}
	}
	h.Units = manager
	return h, host.Slots{Manager: manager}, manager.Close
}

// checks are all but existing-deployment, whose answer depends on who asks.
func checks(h *host.Host, c *config.Config) []check.Check {
	all := h.Checks()
	if c == nil {
		return append(all, check.Check{Name: "disk-space", Look: func(context.Context) []check.Result {
			return []check.Result{h.DiskSpace(h.ForImage(-1))}
		}})
	}
	all = append(all, remote.Credentials(c, time.Now()))
	if server, err := remote.Server(c); err == nil {
		all = append(all, remote.API(server))
	}
	return append(all, image(h, c), remote.Artifacts(c, paths.At(h.Root, paths.Tree(h.Slot))))
}

// image asks for the image, and from its size whether there is room for it.
func image(h *host.Host, c *config.Config) check.Check {
	return remote.Reachable(remote.Download{
		Check:  "oci-image-reachable",
		Target: fetch.Redact(c.Image),
		Have:   func() string { return built(h) },
		Probe: func(ctx context.Context) (int64, error) {
			reference, err := oci.Parse(c.Image)
			if err != nil {
				return 0, err
			}
			credentials, err := oci.Credentials(c.RegistryAuthFile)
			if err != nil {
				return 0, err
			}
			return oci.Probe(ctx, reference, fetch.Client{Tries: 1}, credentials, runtime.GOARCH)
		},
		After: func(size int64, failed bool) []check.Result {
			space := h.DiskSpace(h.ForImage(size)).As("disk-space")
			if failed && space.Severity == check.Error {
				space.Severity = check.Warning // what is needed is not known until the image is reached
			}
			return []check.Result{space}
		},
	})
}

// built says that the machine's tree is there: it gets its name when it is complete.
func built(h *host.Host) string {
	tree := paths.Tree(h.Slot)
	if entries, err := os.ReadDir(paths.At(h.Root, tree)); err != nil || len(entries) == 0 {
		return ""
	}
	return tree + " is built"
}
