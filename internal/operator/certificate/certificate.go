// Package certificate issues serving certificates of operators.
package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"time"
)

const (
	// Life is the validity of a serving certificate.
	Life = 30 * 24 * time.Hour
	// Skew is the tolerated clock skew: certificates are valid from that long before their creation.
	Skew = time.Hour
)

// Issue creates a key and a certificate from a template without a serial number. The certificate is signed by an authority, or
// self-signed if that is nil.
func Issue(template, authority *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("generate a serial number: %w", err)
	}
	template.SerialNumber = serial
	if authority == nil {
		authority, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority, &key.PublicKey, by)
	if err != nil {
		return nil, nil, fmt.Errorf("sign a certificate: %w", err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("read a certificate: %w", err)
	}
	return c, key, nil
}

// Serving issues a certificate for a server from a template with its names, valid from now.
func Serving(template *x509.Certificate, now time.Time, authority *x509.Certificate, by *ecdsa.PrivateKey) (*tls.Certificate, error) {
	template.NotBefore, template.NotAfter = now.Add(-Skew), now.Add(Life)
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	c, key, err := Issue(template, authority, by)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key, Leaf: c}, nil
}
