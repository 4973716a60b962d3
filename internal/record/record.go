// Package record is the install record: who owns this host, and in which mode; never how far anything got.
//
// The format is the public agent's, version 1. Fields that we do not know are
// carried on, so that an older release can read, and rewrite, a newer record.
package record

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"unbounded/internal/paths"
)

// SchemaVersion is the only version of the format.
const SchemaVersion = 1

// Phase is the mode of an installation.
type Phase string

// The phases.
const (
	Installing Phase = "installing"
	Complete   Phase = "complete"
	Resetting  Phase = "resetting"
)

// ErrInvalid is in the chain of every error about the content of a record.
var ErrInvalid = errors.New("install record is not valid")

// Record says who owns the host.
type Record struct {
	InstallID         string // 16 random bytes, hex; never changes during an installation
	MachineName       string
	ConfigFingerprint string // see Fingerprint
	Phase             Phase
	Prefix            string // where the programs are; empty in records of the public agent
	MachineID         string // of the host, once it is persistent; empty until then
	Inputs            Inputs // what the fingerprint was made of; empty in records of the public agent

	unknown map[string]json.RawMessage
}

// shape is the record on disk, in the order in which it is written.
type shape struct {
	SchemaVersion     int    `json:"schemaVersion"`
	InstallID         string `json:"installID"`
	MachineName       string `json:"machineName"`
	ConfigFingerprint string `json:"configFingerprint"`
	Phase             Phase  `json:"phase"`
	Prefix            string `json:"prefix,omitempty"`
	MachineID         string `json:"machineID,omitempty"`
	Inputs            Inputs `json:"inputs,omitzero"`
}

// Root is the folder that the programs are below. Records of the public agent do not name theirs.
func (r Record) Root() string { return cmp.Or(r.Prefix, paths.LegacyRoot) }

// Foreign tells whether the installation is the public agent's, or one that nobody can name any more.
func (r Record) Foreign() bool { return r.Prefix == "" || r.MachineName == legacyReset }

// New returns a record of a new installation, in phase Installing, with a fresh ID.
func New(identity Identity) Record {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the program instead
	return Record{
		InstallID:         hex.EncodeToString(id[:]),
		MachineName:       identity.MachineName,
		ConfigFingerprint: identity.Fingerprint(),
		Phase:             Installing,
		Inputs:            identity.Inputs(),
	}
}

// Parse reads a record. Every error has ErrInvalid in its chain and names the field.
func Parse(data []byte) (Record, error) {
	var s shape
	if err := json.Unmarshal(data, &s); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := s.check(); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	r := Record{
		InstallID: s.InstallID, MachineName: s.MachineName, ConfigFingerprint: s.ConfigFingerprint,
		Phase: s.Phase, Prefix: s.Prefix, MachineID: s.MachineID, Inputs: s.Inputs,
	}
	if err := json.Unmarshal(data, &r.unknown); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	for key := range r.unknown {
		if known(key) {
			delete(r.unknown, key)
		}
	}
	return r, nil
}

// known compares as encoding/json does: without regard to case.
func known(key string) bool {
	for _, name := range []string{"schemaVersion", "installID", "machineName", "configFingerprint", "phase", "prefix", "machineID", "inputs"} {
		if strings.EqualFold(key, name) {
			return true
		}
	}
	return false
}

func (s *shape) check() error {
	if s.SchemaVersion != SchemaVersion {
		return fmt.Errorf("schemaVersion is %d, this release reads %d", s.SchemaVersion, SchemaVersion)
	}
	for _, field := range []struct{ name, value string }{
		{"installID", s.InstallID}, {"machineName", s.MachineName}, {"configFingerprint", s.ConfigFingerprint},
	} {
		if strings.TrimSpace(field.value) == "" {
			return fmt.Errorf("%s is blank", field.name)
		}
	}
	switch s.Phase {
	case Installing, Complete, Resetting:
		return nil
	}
	return fmt.Errorf("phase is %q, want installing, complete or resetting", s.Phase)
}

// Marshal returns the record as it is on disk: indented JSON and a newline, unknown fields last.
func (r Record) Marshal() ([]byte, error) {
	s := shape{
		SchemaVersion, r.InstallID, r.MachineName, r.ConfigFingerprint, r.Phase, r.Prefix, r.MachineID, r.Inputs,
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil || len(r.unknown) == 0 {
		return append(data, '\n'), err
	}
	rest, err := json.MarshalIndent(r.unknown, "", "  ")
	if err != nil {
		return nil, err
	}
	data = append(data[:len(data)-len("\n}")], ',')
	return append(append(data, rest[len("{"):]...), '\n'), nil
}

// equal tells whether two records say the same.
func (r Record) equal(other Record) bool {
	known := r.InstallID == other.InstallID && r.MachineName == other.MachineName &&
		r.ConfigFingerprint == other.ConfigFingerprint && r.Phase == other.Phase &&
		r.Prefix == other.Prefix && r.MachineID == other.MachineID && r.Inputs == other.Inputs
	return known && maps.EqualFunc(r.unknown, other.unknown, func(a, b json.RawMessage) bool {
		return string(a) == string(b)
	})
}
