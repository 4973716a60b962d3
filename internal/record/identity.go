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

// Fingerprint is the SHA-256, in hex, of the compact JSON of version, image and server in this order.
// The form is the public agent's; a host's identity would change with any field added.
func (i Identity) Fingerprint() string {
	data, err := json.Marshal(struct {
		KubernetesVersion string
		OCIImage          string
		APIServer         string
	}{
		strings.TrimPrefix(i.KubernetesVersion, "v"),
		canonicalImage(i.OCIImage),
		NormalServer(i.APIServer),
	})
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
