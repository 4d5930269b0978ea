package networkpolicy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/certificate"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/policy/wire"
	"github.com/berthnet/berth/internal/retry"
)

const (
	// renewBefore is how long before its expiry a certificate is replaced.
	renewBefore = certificate.Life / 3
	// publishEvery is the interval at which the leader checks the ConfigMap for changes by others.
	publishEvery = time.Minute
	// publishAgain is that interval after a failure.
	publishAgain = 500 * time.Millisecond
	// publishSoon is the interval of checks whether the operator can serve, while nodes wait for it.
	publishSoon = 50 * time.Millisecond
)

// publisher serves with a self-signed certificate, whose key never leaves the process, and publishes the certificate together
// with the address of the server. Because both are in one object, which nodes read before each connection, no certificate
// authority has to outlive the leader.
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
	retry.Repeat(ctx, p.clock, func(ctx context.Context) (time.Duration, error) {
		if serves := p.serves() == nil; !serves {
			return publishSoon, nil
		}
		if err := p.publish(ctx); err != nil {
			return publishAgain, err
		}
		return publishEvery, nil
	}, func(err error) {
		p.log.Error("cannot publish the address for network policies: nodes cannot connect to this operator", "err", err)
	})
}

// publish renews the certificate when it is due, and makes the ConfigMap name this operator.
func (p *publisher) publish(ctx context.Context) error {
	now := p.clock.Now()
	p.mu.Lock()
	serving, text := p.certificate, p.pem
	p.mu.Unlock()
	if serving == nil || now.After(serving.Leaf.NotAfter.Add(-renewBefore)) {
		var err error
		if serving, text, err = newCertificate(now); err != nil {
			return err
		}
		p.mu.Lock()
		p.certificate, p.pem = serving, text
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
	p.log.Info("published the address for network policies", "address", p.address)
	return nil
}

// newCertificate returns a self-signed certificate of wire.ServerName, and its PEM.
func newCertificate(now time.Time) (*tls.Certificate, []byte, error) {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: wire.ServerName}, DNSNames: []string{wire.ServerName}}
	c, err := certificate.Serving(template, now, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	return c, bytes.TrimSpace(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Leaf.Raw})), nil
}
