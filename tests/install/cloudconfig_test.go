// Package install tests scripts/install.sh on booted hosts that have nothing of the product, and docs/examples/cloud-init.yaml.
package install

import (
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

// cloudConfig is what the example uses of a cloud-config.
type cloudConfig struct {
	WriteFiles []writeFile `json:"write_files"`
	RunCmd     []any       `json:"runcmd"`
}

type writeFile struct {
	Path        string `json:"path"`
	Owner       string `json:"owner"`
	Permissions string `json:"permissions"`
	Content     string `json:"content"`
}

// example reads the example, with texts replaced, old and new in turn.
func example(replace ...string) (cloudConfig, error) {
	var config cloudConfig
	text, err := os.ReadFile("../../docs/examples/cloud-init.yaml")
	if err != nil {
		return config, err
	}
	if !strings.HasPrefix(string(text), "#cloud-config\n") {
		return config, fmt.Errorf("cloud-init would not know it: the first line is not #cloud-config")
	}
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(string(text), replace[i]) {
			return config, fmt.Errorf("the example does not have %q", replace[i])
		}
	}
	err = yaml.UnmarshalStrict([]byte(strings.NewReplacer(replace...).Replace(string(text))), &config)
	return config, err
}

// script is what cloud-init makes of runcmd: a text is taken as it is, the words of a list are quoted.
func (c cloudConfig) script() (string, error) {
	var out strings.Builder
	out.WriteString("#!/bin/sh\n")
	for _, command := range c.RunCmd {
		switch command := command.(type) {
		case string:
			out.WriteString(command + "\n")
		case []any:
			for _, word := range command {
				fmt.Fprintf(&out, "'%s' ", strings.ReplaceAll(fmt.Sprint(word), "'", `'\''`))
			}
			out.WriteString("\n")
		default:
			return "", fmt.Errorf("runcmd has a %T", command)
		}
	}
	return out.String(), nil
}
