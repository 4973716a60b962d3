package admission

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"unbounded/internal/config"
	"unbounded/internal/durable"
	"unbounded/internal/exit"
	"unbounded/internal/paths"
	"unbounded/internal/record"
)

// ErrNoConfig says that neither the file nor the credential is there.
var ErrNoConfig = errors.New("write the node's configuration there, mode 0600")

// Read returns the configuration of the host below root and the path that it is from: the operator's file, or else the
// credential in one of the folders that systemd has put credentials into ("" is none). The file wins: it is what an operator
// can see and edit, and a refreshed token in it must count. A credential that is empty is none, so that a unit may
// have an empty default.
func Read(root string, credentials ...string) (data []byte, from string, err error) {
	from = paths.At(root, paths.Config)
	data, err = durable.Read(from, config.MaxSize+1)
	if !errors.Is(err, fs.ErrNotExist) {
		return data, from, misplaced(err)
	}
	for _, folder := range credentials {
		if folder == "" {
			continue
		}
		path := filepath.Join(folder, paths.Credential)
		data, err := durable.Read(path, config.MaxSize+1)
		if err == nil && len(bytes.TrimSpace(data)) == 0 || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return data, path, misplaced(err)
	}
	return nil, from, exit.As(exit.Refused, fmt.Errorf("%s is missing: %w (or give the credential %s)", from, ErrNoConfig, paths.Credential))
}

func misplaced(err error) error {
	if errors.Is(err, durable.ErrNotFile) {
		return exit.As(exit.Refused, fmt.Errorf("%w: remove it and write the node's configuration there, mode 0600", err))
	}
	return err
}

// configuration is what the request is admitted with, and the identity that it asks for. A complete host needs none: its node
// runs from the applied one, and a credential may be gone after the first boot. Then both are nil.
func configuration(request Request) ([]byte, *record.Identity, error) {
	data, from, err := Read(request.Root, request.Credentials)
	if errors.Is(err, ErrNoConfig) && complete(request.Root) {
		request.say("there is no configuration: the host is complete and needs none")
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if from != paths.At(request.Root, paths.Config) {
		request.say("the configuration is the credential %s", paths.Credential)
	}
	identity, err := config.ParseIdentity(data, config.ReadHost(request.Root))
	return data, &identity, err
}

// complete tells whether the record says so.
func complete(root string) bool {
	r, err := record.Open(root).Load()
	return err == nil && r.Phase == record.Complete
}

func (r Request) say(format string, args ...any) {
	if r.Say != nil {
		r.Say(format, args...)
	}
}
