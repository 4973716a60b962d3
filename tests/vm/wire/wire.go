// Package wire is what a test and what runs in its virtual machine say to each other.
package wire

// Request asks the agent to run a shell command.
type Request struct {
	ID     int    `json:"id"`
	Script string `json:"script"`
	Input  string `json:"input,omitempty"` // standard input
}

// Answer is the end of a command. The one with ID 0 says that the agent is there.
type Answer struct {
	ID   int    `json:"id"`
	Out  string `json:"out,omitempty"`
	Err  string `json:"err,omitempty"`
	Code int    `json:"code"`
}

// Kubelet is what the stand-in of kubelet has behind its end, after Mark.
type Kubelet struct {
	Node       string `json:"node"`
	Server     string `json:"server"`
	CA         string `json:"ca"`         // PEM
	Credential string `json:"credential"` // certificate and key, PEM
	Kubeconfig string `json:"kubeconfig"` // naming the file with the credential
}

// Mark begins the payload of a program. It is put together here, so that no program has it whole.
func Mark() string {
	parts := []string{"unbounded", "payload", "begins", "here"}
	mark := "\n"
	for _, part := range parts {
		mark += part + "\n"
	}
	return mark
}
