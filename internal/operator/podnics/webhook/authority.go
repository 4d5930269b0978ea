package webhook

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"time"
)

const (
	authorityLife   = 365 * 24 * time.Hour
	certificateLife = 30 * 24 * time.Hour
	// skew is how far clocks may differ: certificates are valid from that long before they are made.
	skew = time.Hour
)

// authority signs the certificates with which operators serve.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func (a authority) made() time.Time { return a.cert.NotBefore.Add(skew) }

func newAuthority(now time.Time) (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, fmt.Errorf("make a key: %w", err)
	}
	der, err := sign(&x509.Certificate{
		Subject:   pkix.Name{CommonName: "berth-operator webhook"},
		NotBefore: now.Add(-skew), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, key, key)
	if err != nil {
		return authority{}, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return authority{}, fmt.Errorf("read a certificate: %w", err)
	}
	return authority{cert, key}, nil
}

// serving creates a certificate, with a key of its own, of a server with some names and addresses.
func (a authority) serving(now time.Time, names []string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	c := &x509.Certificate{
		Subject:   pkix.Name{CommonName: names[0]},
		NotBefore: now.Add(-skew), NotAfter: now.Add(certificateLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, n := range names {
		if ip, err := netip.ParseAddr(n); err == nil {
			c.IPAddresses = append(c.IPAddresses, ip.AsSlice())
		} else {
			c.DNSNames = append(c.DNSNames, n)
		}
	}
	der, err := sign(c, a.cert, key, a.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read a certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// sign signs a certificate for a key. Without a parent it is self-signed.
func sign(c, parent *x509.Certificate, key, by *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	c.SerialNumber = serial
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	return der, nil
}

// bundle returns the certificates of authorities in PEM.
func bundle(list []authority) []byte {
	var out []byte
	for _, a := range list {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})...)
	}
	return out
}

// keys returns the keys of authorities in PEM, in the same order.
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

// read parses what bundle and keys return. Empty texts are no authorities.
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
			return nil, errors.New("there are not as many keys as certificates")
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
			return nil, errors.New("a key is not that of its certificate")
		}
		list = append(list, authority{cert, key})
	}
}

const (
	// renewAfter is how old the newest authority is when the next one is created.
	renewAfter = authorityLife * 2 / 3
	// settle is how long a new authority is trusted before it signs, so that every API server knows it by
	// then.
	settle = time.Hour
)

// current returns the authorities that have not expired, and whether another one is due.
func current(list []authority, now time.Time) (kept []authority, due bool) {
	kept = slices.DeleteFunc(slices.Clone(list), func(a authority) bool { return !now.Before(a.cert.NotAfter) })
	return kept, !slices.ContainsFunc(kept, func(a authority) bool { return now.Before(a.made().Add(renewAfter)) })
}

// signer returns the authority that signs: the newest that has settled, or else the oldest.
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
