package operator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/internal/version"
)

const (
	// tryEvery is between two tries to reach an API server that does not answer.
	tryEvery = time.Second
	// certainty is how long an API server must refuse the operator to be
	// believed: one that just started knows no roles and no accounts yet.
	certainty = 10 * time.Second
	// tryTimeout bounds one try.
	tryTimeout = 10 * time.Second
)

// apiServer is the way to the Kubernetes API.
type apiServer struct {
	config *rest.Config
	scheme *runtime.Scheme
	http   *http.Client
	mapper meta.RESTMapper // knows, after await, all kinds that are watched
	client client.Reader
	clock  clock.Clock
	kinds  []*watched.Kind
}

// newAPIServer sends nothing yet.
func newAPIServer(kubeconfig string, kinds []*watched.Kind) (*apiServer, error) {
	a := &apiServer{scheme: runtime.NewScheme(), clock: clock.Real{}, kinds: kinds}
	err := errors.Join(clientscheme.AddToScheme(a.scheme), v1alpha1.AddToScheme(a.scheme))
	if err != nil {
		return nil, err
	}
	if a.config, err = restConfig(kubeconfig); err != nil {
		return nil, err
	}
	if a.http, err = rest.HTTPClientFor(a.config); err != nil {
		return nil, fmt.Errorf("connecting to the Kubernetes API: %w", err)
	}
	if a.mapper, err = apiutil.NewDynamicRESTMapper(a.config, a.http); err != nil {
		return nil, fmt.Errorf("connecting to the Kubernetes API: %w", err)
	}
	if a.client, err = client.New(a.config, client.Options{Scheme: a.scheme, HTTPClient: a.http, Mapper: a.mapper}); err != nil {
		return nil, fmt.Errorf("connecting to the Kubernetes API: %w", err)
	}
	return a, nil
}

// restConfig is how to reach the API server. The rate of requests is not
// limited here: the API server does (API priority and fairness).
func restConfig(kubeconfig string) (*rest.Config, error) {
	read := rest.InClusterConfig
	if kubeconfig != "" {
		read = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", kubeconfig) }
	}
	rc, err := read()
	if err != nil {
		return nil, fmt.Errorf("finding the Kubernetes API; set --kubeconfig out of a cluster: %w", err)
	}
	rc.QPS = -1
	rc.UserAgent = "berth-operator/" + version.String()
	return rc, nil
}

// await returns once the operator can read what it watches. While the API
// server is away it tries again, and logs and reports why, once as long as that
// does not change. The error is that of an API server that will not have it. It
// also returns when ctx ends.
func (a *apiServer) await(ctx context.Context, log *slog.Logger, report func(error)) error {
	began, refused, last := a.clock.Now(), time.Time{}, ""
	for ctx.Err() == nil {
		err, now := a.read(ctx), a.clock.Now()
		why := because(err)
		switch {
		case ctx.Err() != nil:
			continue // to the end
		case err == nil:
			if last != "" {
				log.Info("the Kubernetes API answers", "server", a.config.Host, "waited", now.Sub(began).Round(time.Millisecond))
			}
			return nil
		case why != refuses:
			refused = time.Time{}
		case refused.IsZero():
			refused = now
		case now.Sub(refused) > certainty:
			return fmt.Errorf("the Kubernetes API at %s %s: %w: is --kubeconfig right, and are its roles applied (deploy/chart)?", a.config.Host, why, err)
		}
		if why != last {
			log.Warn("waiting for the Kubernetes API", "server", a.config.Host, "because", "it "+why, "error", err)
			last = why
		}
		report(fmt.Errorf("starting: the Kubernetes API %s: %w", why, err))
		select {
		case <-ctx.Done():
		case <-a.clock.After(tryEvery):
		}
	}
	return nil
}

// mapping is the mapper for a manager.Manager, which has not to ask again.
func (a *apiServer) mapping(*rest.Config, *http.Client) (meta.RESTMapper, error) {
	return a.mapper, nil
}

// read reads of each kind that is watched one object at most.
func (a *apiServer) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	for _, k := range a.kinds {
		if err := a.client.List(ctx, k.List(), client.Limit(1)); err != nil {
			return err
		}
	}
	return nil
}

// Why the API cannot be used.
const (
	away    = "does not answer"
	refuses = "refuses berth-operator"
	lacks   = "lacks kinds of Berth's; apply deploy/chart"
)

// because sorts the errors of read.
func because(err error) string {
	var untrusted *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	switch {
	case err == nil:
		return ""
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err): // a list is found, but of a kind that is not served
		return lacks
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err),
		errors.As(err, &untrusted), errors.As(err, &plain), errors.Is(err, http.ErrSchemeMismatch):
		return refuses
	default:
		return away
	}
}
