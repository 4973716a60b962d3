package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"unbounded/internal/document"
)

// MaxSize is far above any real configuration: no reader needs more than a byte beyond it.
const MaxSize = 1 << 20

// File is the configuration on disk: the public agent's keys, plus HostFirewall,
// RegistryAuthFile, Preflight and the digests of Downloads, which are ours.
type File struct {
	MachineName string      `json:",omitempty"`
	NodeName    string      `json:",omitempty"`
	Cluster     FileCluster `json:",omitzero"`
	Kubelet     FileKubelet `json:",omitzero"`
	CRI         FileCRI     `json:",omitzero"`
	CNI         FileCNI     `json:",omitzero"`
	OCIImage    string      `json:",omitempty"`
	Gantry      struct {
		Disabled bool // carried on for the public agent: no mirror on the node is set up here
	} `json:",omitzero"`
	AdditionalHostDevices []string    `json:",omitempty"`
	AdditionalHostMounts  []FileMount `json:",omitempty"`
	HostFirewall          string      `json:",omitempty"`
	RegistryAuthFile      string      `json:",omitempty"`
	Preflight             struct {
		IgnoreErrors []string `json:",omitempty"`
	} `json:",omitzero"`
	Attest struct {
		URL string
	} `json:",omitzero"`
	Downloads FileDownloads `json:",omitzero"`
}

// FileCluster is Cluster.
type FileCluster struct {
	CaCertBase64 string `json:",omitempty"`
	ClusterDNS   string `json:",omitempty"`
	Version      string `json:",omitempty"`
}

// FileKubelet is Kubelet.
type FileKubelet struct {
	APIServer               string            `json:"ApiServer,omitempty"`
	BootstrapToken          string            `json:",omitempty"` // where older documents have it
	Auth                    FileAuth          `json:",omitzero"`
	KubeconfigData          string            `json:",omitempty"` // base64
	Labels                  map[string]string `json:",omitempty"`
	RegisterWithTaints      []string          `json:",omitempty"`
	NodeIP                  string            `json:",omitempty"`
	Configuration           map[string]any    `json:",omitempty"`
	ImageCredentialProvider struct {
		ConfigPath string `json:",omitempty"`
		BinDir     string `json:",omitempty"`
	} `json:",omitzero"`
}

// FileAuth is Kubelet.Auth.
type FileAuth struct {
	BootstrapToken string    `json:",omitempty"`
	ExecCredential *FileExec `json:",omitempty"`
}

// FileExec is client-go's ExecConfig.
type FileExec struct {
	APIVersion string   `json:"apiVersion,omitempty"`
	Command    string   `json:"command"`
	Args       []string `json:"args,omitempty"`
	Env        []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"env,omitempty"`
	InstallHint        string `json:"installHint,omitempty"`
	InteractiveMode    string `json:"interactiveMode,omitempty"`
	ProvideClusterInfo bool   `json:"provideClusterInfo,omitempty"`
}

// FileCRI is CRI.
type FileCRI struct {
	Containerd struct {
		Version         string       `json:",omitempty"`
		SandboxImage    string       `json:",omitempty"`
		RegistryMirrors []FileMirror `json:",omitempty"`
	} `json:",omitzero"`
	Runc struct {
		Version string `json:",omitempty"`
	} `json:",omitzero"`
}

// FileMirror is one of CRI.Containerd.RegistryMirrors.
type FileMirror struct {
	Host       string
	Server     string `json:",omitempty"`
	Mirror     string
	SkipVerify bool `json:",omitempty"`
}

// FileCNI is CNI.
type FileCNI struct {
	PluginVersion string `json:",omitempty"`
}

// FileMount is one of AdditionalHostMounts.
type FileMount struct {
	Source   string
	Target   string `json:",omitempty"`
	ReadOnly bool   `json:",omitempty"`
}

// FileDownloads is Downloads.
type FileDownloads struct {
	Kubernetes FileSource `json:",omitzero"`
	Containerd FileSource `json:",omitzero"`
	Runc       FileSource `json:",omitzero"`
	CNI        FileSource `json:",omitzero"`
	Crictl     FileSource `json:",omitzero"`
}

// FileSource is one of Downloads.
type FileSource struct {
	BaseURL string `json:",omitempty"`
	URL     string `json:",omitempty"`
	Version string `json:",omitempty"`
	SHA256  string `json:",omitempty"`
}

// read decodes data. Values of the wrong kind are left out of the file and reported,
// so that all other checks can still be made.
func read(data []byte) (file *File, unknown []string, problems Problems) {
	if len(data) > MaxSize {
		problems.add("", "document is larger than 1 MiB", fixSize)
		return nil, nil, problems
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !json.Valid(data) {
		problems.add("", "document is not JSON: "+syntaxError(data), fixDocument)
		return nil, nil, problems
	}
	if first := bytes.TrimSpace(data)[0]; first != '{' {
		problems.add("", "document is not a JSON object", fixDocument)
		return nil, nil, problems
	}
	file = new(File)
	unknown, mismatches, err := document.Compare(data, file)
	if err != nil {
		problems.add("", err.Error(), "")
		return nil, nil, problems
	}
	for _, m := range mismatches {
		problems.add(m.Path, fmt.Sprintf("is %s", m.Have), "give "+m.Want)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(file); err != nil && len(problems) == 0 {
		problems.add("", "document does not fit: "+err.Error(), "")
	}
	return file, unknown, problems
}

// syntaxError says where data stops being JSON.
func syntaxError(data []byte) string {
	var whole json.RawMessage
	err := json.Unmarshal(data, &whole)
	if len(bytes.TrimSpace(data)) == 0 {
		return "it is empty"
	}
	syntax, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return "it cannot be read"
	}
	before := data[:min(int(syntax.Offset), len(data))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := len(before) - (bytes.LastIndexByte(before, '\n') + 1)
	return fmt.Sprintf("line %d, column %d: %v", line, column, err)
}
