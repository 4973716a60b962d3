package kubelet

import (
	"errors"
	"io/fs"
	"strings"

	"unbounded/internal/paths"
	"unbounded/internal/tree"
)

// maxKubeconfig is more than any kubeconfig has.
const maxKubeconfig = 1 << 20

// HasCertificate tells whether kubelet in the tree has a client certificate of its own: its
// kubeconfig names one, and it is there. kubelet writes the kubeconfig before it has
// the certificate, so the kubeconfig alone proves nothing.
func HasCertificate(root *tree.Root) (bool, error) {
	data, err := root.ReadFile(paths.Kubeconfig, maxKubeconfig)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(data)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "client-certificate:")
		if !ok {
			continue
		}
		info, err := root.Stat(strings.Trim(strings.TrimSpace(name), `"'`))
		switch {
		case err == nil:
			return info.Mode().IsRegular() && info.Size() > 0, nil
		case !errors.Is(err, fs.ErrNotExist):
			return false, err
		}
	}
	return false, nil
}

// HasRun tells whether kubelet was ever started in the tree: it makes its own files before it registers.
func HasRun(root *tree.Root) (bool, error) {
	names, err := root.Names(paths.Kubelet)
	for _, name := range names {
		switch paths.Kubelet + "/" + name {
		case paths.Kubeconfig, paths.BootstrapKubeconfig, paths.KubeletConfig:
		default:
			return true, err
		}
	}
	return false, err
}
