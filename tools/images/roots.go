package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// rootsModule is the source of the root certificates in the SBOM.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// rootCertificates is Mozilla's list of certificate authorities for servers as a PEM bundle. A PEM file cannot express
// that an authority is trusted for some certificates only, such as those before a date, so authorities with such a
// constraint are left out.
func rootCertificates() ([]byte, error) {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		parsed, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			return nil, fmt.Errorf("read a root certificate: %w", err)
		}
		fmt.Fprintf(&out, "# %s\n", parsed.Subject)
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, fmt.Errorf("write root certificates: %w", err)
		}
	}
	return out.Bytes(), nil
}
