package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// lifetime of certificates; an hour before now, for clocks that disagree.
const (
	backdated = time.Hour
	lifetime  = 24 * time.Hour
)

// pair is a certificate and its key, PEM.
type pair struct {
	certificate, key []byte
}

// authority signs the certificates of one cluster.
type authority struct {
	pair

	parsed *x509.Certificate
	signer crypto.Signer
}

// newAuthority makes a self-signed authority.
func newAuthority(name string) (*authority, error) {
	signer, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	template := newTemplate(name)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{pair: pair{encode("CERTIFICATE", der), keyPEM}, parsed: parsed, signer: signer}, nil
}

// server issues a certificate for a server at the addresses and names.
func (a *authority) server(names []string, addresses ...string) (pair, error) {
	template := newTemplate(names[0])
	template.DNSNames = names
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(address))
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	return a.issue(template)
}

// client issues a certificate that makes its bearer a user and member of groups.
func (a *authority) client(user string, groups ...string) (pair, error) {
	template := newTemplate(user)
	template.Subject.Organization = groups
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(template)
}

func (a *authority) issue(template *x509.Certificate) (pair, error) {
	signer, keyPEM, err := newKey()
	if err != nil {
		return pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.parsed, signer.Public(), a.signer)
	return pair{encode("CERTIFICATE", der), keyPEM}, err
}

func newTemplate(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // never fails
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-backdated),
		NotAfter:     now.Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func newKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	// The API server reads no other form of a key for service accounts.
	der, err := x509.MarshalECPrivateKey(key)
	return key, encode("EC PRIVATE KEY", der), err
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
