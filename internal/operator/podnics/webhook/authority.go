package webhook

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/operator/certificate"
)

const authorityLife = 365 * 24 * time.Hour

// authority signs the certificates that operators serve with.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func (a authority) made() time.Time { return a.cert.NotBefore.Add(certificate.Skew) }

func newAuthority(now time.Time) (authority, error) {
	cert, key, err := certificate.Issue(&x509.Certificate{
		Subject:   pkix.Name{CommonName: "berth-operator webhook"},
		NotBefore: now.Add(-certificate.Skew), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	return authority{cert, key}, err
}

// serving creates a certificate, with its own key, for a server with these names and addresses.
func (a authority) serving(now time.Time, names []string) (*tls.Certificate, error) {
	c := &x509.Certificate{Subject: pkix.Name{CommonName: names[0]}}
	for _, n := range names {
		if ip, err := netip.ParseAddr(n); err == nil {
			c.IPAddresses = append(c.IPAddresses, ip.AsSlice())
		} else {
			c.DNSNames = append(c.DNSNames, n)
		}
	}
	return certificate.Serving(c, now, a.cert, a.key)
}

// bundle returns the certificates of authorities as PEM.
func bundle(list []authority) []byte {
	var out []byte
	for _, a := range list {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})...)
	}
	return out
}

// keys returns the keys of authorities as PEM, in the same order.
func keys(list []authority) ([]byte, error) {
	var out []byte
	for _, a := range list {
		der, err := x509.MarshalPKCS8PrivateKey(a.key)
		if err != nil {
			return nil, fmt.Errorf("write a key: %w", err)
		}
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...)
	}
	return out, nil
}

// read parses the results of bundle and keys. Empty texts mean no authorities.
func read(certs, keys []byte) ([]authority, error) {
	var list []authority
	for {
		var c, k *pem.Block
		c, certs = pem.Decode(certs)
		k, keys = pem.Decode(keys)
		if c == nil && k == nil {
			return list, nil
		}
		if c == nil || k == nil {
			return nil, errors.New("the numbers of keys and certificates differ")
		}
		cert, err := x509.ParseCertificate(c.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read a certificate: %w", err)
		}
		parsed, err := x509.ParsePKCS8PrivateKey(k.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read a key: %w", err)
		}
		key, is := parsed.(*ecdsa.PrivateKey)
		if !is || !key.PublicKey.Equal(cert.PublicKey) || !cert.IsCA {
			return nil, errors.New("a key does not match its certificate")
		}
		list = append(list, authority{cert, key})
	}
}

const (
	// renewAfter is how old the newest authority is when the next one is created.
	renewAfter = authorityLife * 2 / 3
	// settle is how long a new authority is trusted before it signs, so that every API server knows it by then.
	settle = time.Hour
)

// current returns the authorities that have not expired, and whether a new one is due.
func current(list []authority, now time.Time) (kept []authority, due bool) {
	kept = slices.DeleteFunc(slices.Clone(list), func(a authority) bool { return !now.Before(a.cert.NotAfter) })
	return kept, !slices.ContainsFunc(kept, func(a authority) bool { return now.Before(a.made().Add(renewAfter)) })
}

// signer returns the authority that signs: the newest one that has settled, otherwise the oldest.
func signer(list []authority, now time.Time) (authority, bool) {
	kept, _ := current(list, now)
	if len(kept) == 0 {
		return authority{}, false
	}
	slices.SortStableFunc(kept, func(a, b authority) int { return a.made().Compare(b.made()) })
	for _, a := range slices.Backward(kept) {
		if !now.Before(a.made().Add(settle)) {
			return a, true
		}
	}
	return kept[0], true
}
