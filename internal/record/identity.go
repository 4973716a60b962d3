package record

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
)

// Identity is what makes two configurations the same installation. Tokens, the CA,
// DNS, labels, taints and download sources are not part of it: they may be
// refreshed between attempts.
type Identity struct {
	MachineName       string
	KubernetesVersion string
	OCIImage          string
	APIServer         string
}

// Inputs are what a fingerprint is made of, in the order in which they are hashed.
// A field more would change the identity of every host.
type Inputs struct {
	KubernetesVersion string // without v
	OCIImage          string // an https reference without its query and slashes at its end
	APIServer         string // with its scheme
}

// Inputs returns the identity as it is hashed.
func (i Identity) Inputs() Inputs {
	return Inputs{
		strings.TrimPrefix(i.KubernetesVersion, "v"),
		canonicalImage(i.OCIImage),
		NormalServer(i.APIServer),
	}
}

// Fingerprint is the SHA-256, in hex, of the compact JSON of version, image and server in this order.
// The form is the public agent's.
func (i Identity) Fingerprint() string { return i.Inputs().Fingerprint() }

// Fingerprint is the SHA-256, in hex, of the compact JSON of the inputs.
func (i Inputs) Fingerprint() string {
	data, err := json.Marshal(i)
	if err != nil {
		panic(err) // three strings always marshal
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// canonicalImage drops what may be refreshed of an image URL: its query (a signature)
// and slashes at the end of its path. Other references are returned as they are.
func canonicalImage(reference string) string {
	if !strings.HasPrefix(reference, "https://") {
		return reference
	}
	u, err := url.Parse(reference)
	if err != nil {
		return reference
	}
	u.RawQuery, u.ForceQuery = "", false
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = strings.TrimRight(u.RawPath, "/")
	return u.String()
}

// NormalServer gives an API server without a scheme its https://.
func NormalServer(server string) string {
	if server == "" || strings.Contains(server, "://") {
		return server
	}
	return "https://" + server
}
