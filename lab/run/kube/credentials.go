package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// Files of the control plane's directory.
const (
	caCert          = "ca.crt"
	serverCert      = "apiserver.crt"
	serverKey       = "apiserver.key"
	tokenKey        = "tokens.key" // signs service accounts' tokens
	adminKubeconfig = "admin.kubeconfig"

	kubeletClientCert = "kubelet-client.crt" // of the API server for requests to kubelets
	kubeletClientKey  = "kubelet-client.key"
)

// authority signs the certificates of one control plane and its users.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte // cert
}

// writeCredentials creates the certificates and keys of the programs.
func (c *ControlPlane) writeCredentials() error {
	ca, err := newAuthority()
	if err != nil {
		return fmt.Errorf("create a certificate authority: %w", err)
	}
	c.ca = ca
	server, key, err := ca.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: apiServer},
		IPAddresses: []net.IP{c.Address.AsSlice(), ServiceCIDRs[c.Families.Families()[0]].Addr().Next().AsSlice()},
		DNSNames:    []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fmt.Errorf("create the API server's certificate: %w", err)
	}
	// With full access to kubelets, as in kubeadm.
	kubeletClient, kubeletKey, err := ca.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver-kubelet-client", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return fmt.Errorf("create the API server's client certificate for kubelets: %w", err)
	}
	signer, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return fmt.Errorf("create the signing key of tokens: %w", err)
	}
	for name, data := range map[string][]byte{
		caCert: ca.pem, serverCert: server, serverKey: key, tokenKey: signer,
		kubeletClientCert: kubeletClient, kubeletClientKey: kubeletKey,
	} {
		if err := os.WriteFile(filepath.Join(c.Dir, name), data, 0o600); err != nil {
			return err
		}
	}
	if c.admin, err = c.ConfigFor("admin", "system:masters"); err != nil {
		return err
	}
	return WriteKubeconfig(filepath.Join(c.Dir, adminKubeconfig), c.admin)
}

// Config returns an administrator's configuration without a rate limit.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.admin) }

// AdminKubeconfig returns the path of a kubeconfig with Config, for other programs.
func (o Options) AdminKubeconfig() string { return filepath.Join(o.Dir, adminKubeconfig) }

// CA returns the PEM certificate of the control plane's authority.
func (c *ControlPlane) CA() []byte { return c.ca.pem }

// ConfigFor returns the configuration of a user with groups, whose permissions RBAC determines.
func (c *ControlPlane) ConfigFor(user string, groups ...string) (*rest.Config, error) {
	if c.remote {
		return nil, fmt.Errorf("create a certificate for %s: %w", user, errRemote)
	}
	cert, key, err := c.ca.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, fmt.Errorf("create a certificate for %s: %w", user, err)
	}
	cfg := c.anonymous()
	cfg.CertData, cfg.KeyData = cert, key
	return cfg, nil
}

// ConfigWithToken returns a configuration with a bearer token; see Token.
func (c *ControlPlane) ConfigWithToken(token string) *rest.Config {
	cfg := c.anonymous()
	cfg.BearerToken = token
	return cfg
}

func (c *ControlPlane) anonymous() *rest.Config {
	cfg := &rest.Config{Host: "https://" + c.address.String(), QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.pem}}
	if c.remote {
		cfg.Host, cfg.ServerName = c.admin.Host, c.admin.ServerName
	}
	if c.Netns != "" {
		cfg.Dial = dialer(c.Netns, c.address)
	}
	return cfg
}

// dialer returns a function that connects to a fixed address in a network namespace.
func dialer(netns string, to netip.AddrPort) func(ctx context.Context, network, _ string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return ns.Dial(ctx, netns, network, to, netip.Addr{})
	}
}

// WriteKubeconfig writes a configuration of this package as a kubeconfig.
func WriteKubeconfig(file string, cfg *rest.Config) error {
	const name = "vpclab"
	k := clientapi.NewConfig()
	k.Clusters[name] = &clientapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData, TLSServerName: cfg.ServerName}
	k.AuthInfos[name] = &clientapi.AuthInfo{
		ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData, Token: cfg.BearerToken, TokenFile: cfg.BearerTokenFile,
	}
	k.Contexts[name] = &clientapi.Context{Cluster: name, AuthInfo: name}
	k.CurrentContext = name
	if err := clientcmd.WriteToFile(*k, file); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// lifetime is the validity of certificates and tokens. NotBefore allows for clocks that differ by an hour.
const lifetime = 365 * 24 * time.Hour

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "vpclab", NotBefore: time.Now().Add(-time.Hour)}, key)
	if err != nil {
		return nil, err
	}
	return &authority{cert: ca, key: key, pem: encode(ca.Raw)}, nil
}

// issue signs a certificate for a new key and returns both as PEM.
func (a *authority) issue(template *x509.Certificate) (cert, key []byte, err error) {
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.SerialNumber = new(big.Int).SetBytes([]byte(rand.Text()))
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(lifetime)
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, k.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(k)
	return encode(der), key, err
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der})
}
