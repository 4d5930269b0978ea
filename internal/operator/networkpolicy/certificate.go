package networkpolicy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/policy/wire"
)

const (
	certificateLife = 30 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is replaced.
	renewBefore = certificateLife / 3
	// skew is how far the clocks of operator and nodes may differ.
	skew = time.Hour
	// publishEvery is the interval at which the leader checks the ConfigMap, which somebody may have changed.
	publishEvery = time.Minute
	// publishAgain is that interval after a failure, and while the operator does not serve yet.
	publishAgain = 500 * time.Millisecond
)

// publisher serves with a self-signed certificate whose key never leaves the process, and publishes the certificate with
// the address of the server. As both are in one object, which nodes read whenever they connect, a new leader needs no
// certificate authority that outlives it.
type publisher struct {
	reader    client.Reader // of the API server, not of a cache
	writer    client.Client
	namespace string
	address   string // host:port of the server
	serves    func() error
	clock     clock.Clock
	log       *slog.Logger

	mu          sync.Mutex // guards below
	certificate *tls.Certificate
	pem         []byte
}

// get is tls.Config.GetCertificate.
func (p *publisher) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.certificate == nil {
		return nil, errors.New("this operator does not lead, and serves no network policies")
	}
	return p.certificate, nil
}

// run publishes until ctx ends.
func (p *publisher) run(ctx context.Context) {
	logged := ""
	for {
		wait := publishEvery
		if err := p.serves(); err != nil {
			wait = publishAgain
		} else if err := p.publish(ctx); err != nil && ctx.Err() == nil {
			wait = publishAgain
			if text := err.Error(); text != logged {
				logged = text
				p.log.Error("cannot publish the address for network policies: nodes that connect to the operator from now on fail", "err", err)
			}
		} else {
			logged = ""
		}
		select {
		case <-ctx.Done():
			return
		case <-p.clock.After(wait):
		}
	}
}

// publish renews the certificate when it is due, and makes the ConfigMap name this operator.
func (p *publisher) publish(ctx context.Context) error {
	now := p.clock.Now()
	p.mu.Lock()
	certificate, text := p.certificate, p.pem
	p.mu.Unlock()
	if certificate == nil || now.After(certificate.Leaf.NotAfter.Add(-renewBefore)) {
		var err error
		if certificate, text, err = newCertificate(now); err != nil {
			return err
		}
		p.mu.Lock()
		p.certificate, p.pem = certificate, text
		p.mu.Unlock()
	}
	key := client.ObjectKey{Namespace: p.namespace, Name: wire.ConfigMapName}
	cm := &corev1.ConfigMap{}
	switch err := p.reader.Get(ctx, key, cm); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("ConfigMap %s does not exist: apply deploy/chart with networkPolicies.enabled", key)
	case err != nil:
		return fmt.Errorf("read ConfigMap %s: %w", key, err)
	}
	if cm.Data[wire.KeyAddress] == p.address && cm.Data[wire.KeyCA] == string(text) {
		return nil
	}
	before := cm.DeepCopy()
	cm.Data = map[string]string{wire.KeyAddress: p.address, wire.KeyCA: string(text)}
	if err := failpoint.Around("operator.policies.publish", func() error { return p.writer.Patch(ctx, cm, objects.IfUnchanged(before)) }); err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", key, err)
	}
	p.log.Info("nodes find the policies of their pods here", "address", p.address)
	return nil
}

// newCertificate returns a self-signed certificate of wire.ServerName, and its PEM.
func newCertificate(now time.Time) (*tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("make a serial number: %w", err)
	}
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: wire.ServerName}, DNSNames: []string{wire.ServerName},
		NotBefore: now.Add(-skew), NotAfter: now.Add(certificateLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("read a certificate: %w", err)
	}
	text := bytes.TrimSpace(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, text, nil
}
