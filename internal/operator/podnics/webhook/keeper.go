package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/certificate"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/retry"
)

// Names of objects that the chart creates and the operator fills in.
const (
	SecretName        = "berth-operator-webhook" // in the operator's namespace
	ConfigurationName = "berth-ports"            // name of both webhook configurations
	ServiceName       = "berth-operator"
)

// The keys of the Secret.
const (
	keyCerts = "ca.crt"
	keyKeys  = "ca.key"
	// keyClients is set by administrators whose API server presents a client certificate.
	keyClients = "client-ca.crt"
)

const (
	// look is the interval at which an operator reads the Secret and, if it leads, the webhook configurations.
	look = time.Minute
	// lookFirst is that interval while it has no certificate.
	lookFirst = 2 * time.Second
)

// store stores authorities, and makes the API server trust them.
type store interface {
	// read returns the data of the Secret, and its version for write.
	read(ctx context.Context) (data map[string][]byte, version string, err error)
	write(ctx context.Context, certs, keys []byte, version string) error
	// trust makes the API server trust certificates of authorities.
	trust(ctx context.Context, certs []byte) error
}

// keeper holds the certificate that this operator serves with. While the operator leads, it also renews the authorities that sign such
// certificates.
type keeper struct {
	store   store
	names   []string
	leads   func() bool
	every   time.Duration // look, except in tests
	clock   clock.Clock
	log     *slog.Logger
	metrics *Metrics

	seen parsed // used only by run

	mu      sync.Mutex // guards the fields below
	serving *tls.Certificate
	trusted *x509.CertPool // authority of client certificates; nil if clients need none
}

// parsed is the Secret as last read, with the authorities in it.
type parsed struct {
	certs, keys []byte
	list        []authority
}

// authorities parses the Secret if it has changed.
func (k *keeper) authorities(certs, secret []byte) ([]authority, error) {
	if k.seen.list != nil && bytes.Equal(certs, k.seen.certs) && bytes.Equal(secret, k.seen.keys) {
		return k.seen.list, nil
	}
	list, err := read(certs, secret)
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", SecretName, err)
	}
	k.seen = parsed{certs, secret, list}
	return list, nil
}

// certificate returns the certificate that this operator serves with, as tls.Config.GetCertificate.
func (k *keeper) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.serving == nil {
		return nil, errors.New("the webhook has no certificate yet")
	}
	return k.serving, nil
}

// clients returns the authority of client certificates, or nil if clients need none.
func (k *keeper) clients() *x509.CertPool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.trusted
}

// require demands client certificates of an authority, if there is one. If it fails, no certificate is accepted.
func (k *keeper) require(authority []byte) (err error) {
	var pool *x509.CertPool
	if len(authority) > 0 {
		if pool = x509.NewCertPool(); !pool.AppendCertsFromPEM(authority) {
			err = fmt.Errorf("secret %s: %s: expected PEM certificates; all client certificates are rejected", SecretName, keyClients)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trusted = pool
	return err
}

// errUnfilled is the error for a Secret that no leader has filled in yet. It disappears once an operator leads.
var errUnfilled = fmt.Errorf("secret %s: no leader has filled it in yet", SecretName)

// unfilled is how long errUnfilled is not logged: acquiring the Lease takes no longer.
const unfilled = time.Minute

func (k *keeper) run(ctx context.Context) error {
	began := k.clock.Now()
	retry.Repeat(ctx, k.clock, func(ctx context.Context) (time.Duration, error) {
		err := k.keep(ctx)
		if ctx.Err() == nil {
			k.metrics.checked(err)
		}
		if errors.Is(err, errUnfilled) && k.clock.Now().Sub(began) < unfilled {
			err = nil
		}
		if _, none := k.certificate(nil); none != nil {
			return lookFirst, err
		}
		return k.every, err
	}, func(err error) {
		k.log.Warn("keeping the webhook's certificates failed: pods are admitted, and only the controller checks them", "err", err)
	})
	return nil
}

// keep reads the Secret once and does what is due.
func (k *keeper) keep(ctx context.Context) error {
	now := k.clock.Now()
	data, version, err := k.store.read(ctx)
	if err != nil {
		return err
	}
	if err := k.require(data[keyClients]); err != nil {
		return err
	}
	leads := k.leads()
	list, err := k.authorities(data[keyCerts], data[keyKeys])
	if err != nil && !leads {
		return err
	}
	if leads { // replaces data that cannot be parsed
		if list, err = k.renew(ctx, list, now, version); err != nil {
			return err
		}
		if err := k.store.trust(ctx, bundle(list)); err != nil {
			return err
		}
	}
	return k.serve(list, now)
}

// renew removes expired authorities, and creates the next one if due.
func (k *keeper) renew(ctx context.Context, list []authority, now time.Time, version string) ([]authority, error) {
	kept, due := current(list, now)
	if !due && len(kept) == len(list) {
		return kept, nil
	}
	if due {
		a, err := newAuthority(now)
		if err != nil {
			return nil, err
		}
		kept = append(kept, a)
	}
	secret, err := keys(kept)
	if err != nil {
		return nil, err
	}
	if err := k.store.write(ctx, bundle(kept), secret, version); err != nil {
		return nil, err
	}
	k.log.Info("renewed the webhook's certificate authorities", "authorities", len(kept), "until", kept[len(kept)-1].cert.NotAfter)
	return kept, nil
}

// serve creates a certificate if there is none, the current one is about to expire, or another authority signs now.
func (k *keeper) serve(list []authority, now time.Time) error {
	by, ok := signer(list, now)
	if !ok {
		return errUnfilled
	}
	k.mu.Lock()
	has := k.serving
	k.mu.Unlock()
	if has != nil && now.Before(has.Leaf.NotAfter.Add(-certificate.Life/3)) && bytes.Equal(has.Leaf.AuthorityKeyId, by.cert.SubjectKeyId) {
		return nil
	}
	fresh, err := by.serving(now, k.names)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.serving = fresh
	return nil
}

// clusterStore is the store in a cluster: a Secret and the webhook configurations.
type clusterStore struct {
	live      client.Reader
	writer    client.Client
	namespace string
	mutates   bool // whether there is also a MutatingWebhookConfiguration
}

func (o clusterStore) read(ctx context.Context) (data map[string][]byte, version string, err error) {
	s := &corev1.Secret{}
	if err := o.live.Get(ctx, client.ObjectKey{Namespace: o.namespace, Name: SecretName}, s); err != nil {
		return nil, "", fmt.Errorf("read the webhook's certificate authorities: %w", err)
	}
	return s.Data, s.ResourceVersion, nil
}

func (o clusterStore) write(ctx context.Context, certs, keys []byte, version string) error {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: SecretName, ResourceVersion: version}}
	before := s.DeepCopy()
	s.Data = map[string][]byte{keyCerts: certs, keyKeys: keys}
	if err := o.writer.Patch(ctx, s, objects.IfUnchanged(before)); err != nil {
		return fmt.Errorf("write the webhook's certificate authorities: %w", err)
	}
	return nil
}

func (o clusterStore) trust(ctx context.Context, certs []byte) error {
	judges := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	err := o.trustFor(ctx, "ValidatingWebhookConfiguration", judges, certs, func() (all []*admissionregistrationv1.WebhookClientConfig) {
		for i := range judges.Webhooks {
			all = append(all, &judges.Webhooks[i].ClientConfig)
		}
		return all
	})
	if !o.mutates {
		return err
	}
	changes := &admissionregistrationv1.MutatingWebhookConfiguration{}
	return errors.Join(err, o.trustFor(ctx, "MutatingWebhookConfiguration", changes, certs, func() (all []*admissionregistrationv1.WebhookClientConfig) {
		for i := range changes.Webhooks {
			all = append(all, &changes.Webhooks[i].ClientConfig)
		}
		return all
	}))
}

// trustFor works like trust for one webhook configuration. reached returns its client configurations after it was read into c.
func (o clusterStore) trustFor(ctx context.Context, kind string, c client.Object, certs []byte, reached func() []*admissionregistrationv1.WebhookClientConfig) error {
	err := o.live.Get(ctx, client.ObjectKey{Name: ConfigurationName}, c)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %s does not exist, so the API server does not call the webhook", kind, ConfigurationName)
	}
	if err != nil {
		return fmt.Errorf("read the webhook configuration: %w", err)
	}
	before := c.DeepCopyObject().(client.Object)
	trusted := true
	for _, r := range reached() {
		trusted = trusted && bytes.Equal(r.CABundle, certs)
		r.CABundle = certs
	}
	if trusted {
		return nil
	}
	if err := o.writer.Patch(ctx, c, objects.IfUnchanged(before)); err != nil {
		return fmt.Errorf("write the CA bundle of the webhook configuration: %w", err)
	}
	return nil
}
