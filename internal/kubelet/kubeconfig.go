package kubelet

import (
	"encoding/json"
	"fmt"

	"unbounded/internal/config"
)

// kubeconfig is the kubeconfig with the bootstrap token or the credential plugin. The CA is
// named, not copied: kubelet carries what it finds here on into its own kubeconfig,
// and a refreshed CA must reach it there too.
func kubeconfig(c *config.Config) ([]byte, error) {
	user := map[string]any{}
	if c.Exec != nil {
		user["exec"] = execConfig(c.Exec)
	} else {
		user["token"] = string(c.Token)
	}
	data, err := json.MarshalIndent(map[string]any{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": "default",
		"clusters": []any{map[string]any{
			"name":    "cluster",
			"cluster": map[string]any{"server": c.APIServer, "certificate-authority": CAFile},
		}},
		"contexts": []any{map[string]any{
			"name":    "default",
			"context": map[string]any{"cluster": "cluster", "user": "kubelet"},
		}},
		"users": []any{map[string]any{"name": "kubelet", "user": user}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write kubeconfig: %w", err)
	}
	return append(data, '\n'), nil
}

func execConfig(e *config.Exec) map[string]any {
	exec := map[string]any{
		"apiVersion":         e.APIVersion,
		"command":            e.Command,
		"interactiveMode":    e.InteractiveMode,
		"provideClusterInfo": e.ProvideClusterInfo,
	}
	if len(e.Args) > 0 {
		exec["args"] = e.Args
	}
	if len(e.Env) > 0 {
		var env []map[string]string
		for _, variable := range e.Env {
			env = append(env, map[string]string{"name": variable.Name, "value": string(variable.Value)})
		}
		exec["env"] = env
	}
	return exec
}
