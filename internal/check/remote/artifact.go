package remote

import (
	"context"
	"runtime"

	"unbounded/internal/artifact"
	"unbounded/internal/check"
	"unbounded/internal/config"
	"unbounded/internal/fetch"
	"unbounded/internal/inventory"
	"unbounded/internal/tree"
)

// artifactCheck is the public name of the check that an artifact belongs to.
func artifactCheck(a config.Artifact) string {
	switch a {
	case config.Kubernetes:
		return "kubernetes-artifacts"
	case config.CNI:
		return "cni-artifacts"
	default: // containerd, runc, crictl
		return "cri-artifacts"
	}
}

// Artifacts asks for the node's binaries, unless the tree at dir has them all.
func Artifacts(c *config.Config, dir string) check.Check {
	return check.Check{Name: artifactCheck(config.Kubernetes), Look: func(ctx context.Context) []check.Result {
		if have(dir, artifact.Plan(c.Downloads, runtime.GOARCH)) {
			var results []check.Result
			for _, name := range []string{"kubernetes-artifacts", "cri-artifacts", "cni-artifacts"} {
				results = append(results, check.Pass(dir, "not needed: %s has the binaries", dir).As(name))
			}
			return results
		}
		var results []check.Result
		for _, found := range artifact.Probe(ctx, fetch.Client{Tries: 1}, c.Downloads, runtime.GOARCH) {
			result := check.Pass(found.Item.String(), "can be fetched")
			if found.Err != nil {
				result = failed(found.Item.String(), found.Err).
					Fix("check Downloads.%s and the network; if the image carries the binaries, ignore this check", found.Artifact)
			}
			results = append(results, result.As(artifactCheck(found.Artifact)))
		}
		return results
	}}
}

// have tells whether the tree has every item. What cannot be told is not there: then the
// rootfs stage will want to fetch it.
func have(dir string, items []artifact.Item) bool {
	root, err := tree.Open(dir)
	if err != nil {
		return false
	}
	defer root.Close()
	built, err := inventory.Load(root)
	if err != nil {
		return false
	}
	binaries := map[string]inventory.Binary{}
	for _, binary := range built.Binaries {
		binaries[binary.Name] = binary
	}
	for _, item := range items {
		why, err := artifact.Stale(root, item, binaries[item.Name])
		if err != nil || why != "" {
			return false
		}
	}
	return true
}
