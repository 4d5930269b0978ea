package operator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/version"
)

const (
	// attemptInterval is the time between attempts to reach an API server that does not answer.
	attemptInterval = time.Second
	// certainty is how long an API server must refuse the operator before the operator gives
	// up: one that has just started knows no roles and no accounts yet.
	certainty = 10 * time.Second
	// attemptTimeout bounds one attempt.
	attemptTimeout = 10 * time.Second
)

// apiServer is the connection to the Kubernetes API.
type apiServer struct {
	config *rest.Config
	scheme *runtime.Scheme
	http   *http.Client
	mapper meta.RESTMapper // after await it knows all kinds that are watched
	client client.Reader
	clock  clock.Clock
	kinds  []*watched.Kind
}

// newAPIServer makes no request yet.
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

// restConfig is how to reach the API server. It does not limit the rate of requests, since the API
// server does (API priority and fairness).
func restConfig(kubeconfig string) (*rest.Config, error) {
	read := rest.InClusterConfig
	if kubeconfig != "" {
		read = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", kubeconfig) }
	}
	rc, err := read()
	if err != nil {
		return nil, fmt.Errorf("finding the Kubernetes API: %w (outside a cluster, set --kubeconfig)", err)
	}
	rc.QPS = -1
	rc.UserAgent = "berth-operator/" + version.String()
	return rc, nil
}

// await returns nil once the operator can read all kinds that it watches, or when ctx ends. Until
// then it tries again, reports the reason each time, and logs it when it changes. The error is that
// of an API server that refuses the operator for good.
func (a *apiServer) await(ctx context.Context, log *slog.Logger, report func(error)) error {
	began, refused, last := a.clock.Now(), time.Time{}, ""
	err := retry.Until(ctx, a.clock, retry.Policy{First: attemptInterval, Most: attemptInterval}, func(ctx context.Context) error {
		err, now := a.read(ctx), a.clock.Now()
		why := because(err)
		switch {
		case ctx.Err() != nil:
			return err
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
			return retry.Stop(fmt.Errorf("the Kubernetes API at %s %s: %w: is --kubeconfig right, and are its roles applied (deploy/chart)?", a.config.Host, why, err))
		}
		if why != last {
			log.Warn("waiting for the Kubernetes API", "server", a.config.Host, "because", "it "+why, "err", err)
			last = why
		}
		report(fmt.Errorf("starting: the Kubernetes API %s: %w", why, err))
		return err
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the program ends
	}
	return err
}

// mapping is the mapper for a manager.Manager, which then need not ask again.
func (a *apiServer) mapping(*rest.Config, *http.Client) (meta.RESTMapper, error) {
	return a.mapper, nil
}

// read reads at most one object of each kind that is watched.
func (a *apiServer) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
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
	lacks   = "lacks kinds of Berth's: apply deploy/chart"
)

// because classifies the errors of read.
func because(err error) string {
	var untrusted *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	switch {
	case err == nil:
		return ""
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err): // a list is not found if its kind is not served
		return lacks
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err),
		errors.As(err, &untrusted), errors.As(err, &plain), errors.Is(err, http.ErrSchemeMismatch):
		return refuses
	default:
		return away
	}
}

// logAgain is the time between two log lines on a kind that still cannot be watched.
const logAgain = 5 * time.Minute

// remedyOf is what to do about a kind that cannot be watched; empty: wait. A Forbidden error names
// the verb and the resource of the missing right.
func remedyOf(err error) string {
	switch why := because(err); {
	case why == lacks:
		return "upgrade the release, or apply the custom resource definitions of deploy/chart: someone removed them"
	case apierrors.IsForbidden(err):
		return "upgrade the release, or apply ClusterRole and ClusterRoleBinding berth-operator of deploy/chart: someone changed or removed them"
	case why == refuses:
		return "restart the operator, or check --kubeconfig: the account or the cluster's certificate authority has changed since the operator started"
	default:
		return ""
	}
}

// unwatched logs which kinds a running operator cannot watch any more, and what to do. Client-go
// tries again about once a second, and would log each attempt.
type unwatched struct {
	log   *slog.Logger
	clock clock.Clock

	mu   sync.Mutex
	last map[string]logged // guarded by mu: by kind
}

// logged is what was logged last on a kind.
type logged struct {
	remedy string
	at     time.Time
}

func newUnwatched(log *slog.Logger, c clock.Clock) *unwatched {
	return &unwatched{log: log, clock: c, last: map[string]logged{}}
}

// handle is for cache.Options.DefaultWatchErrorHandler.
func (u *unwatched) handle(ctx context.Context, r *toolscache.Reflector, err error) {
	if !u.report(r.TypeDescription(), err) {
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	}
}

// report logs an error of a kind that has a remedy: the first time, when the remedy changes, and
// again after logAgain. It is false for errors without a remedy, such as of an API server that is
// away.
func (u *unwatched) report(kind string, err error) bool {
	remedy := remedyOf(err)
	known := remedy != ""
	now := u.clock.Now()
	u.mu.Lock()
	last := u.last[kind]
	fresh := known && (last.remedy != remedy || now.Sub(last.at) >= logAgain)
	if fresh {
		u.last[kind] = logged{remedy, now}
	}
	u.mu.Unlock()
	if fresh {
		u.log.Warn("cannot watch a kind: the cache of it is stale", "kind", kind, "because", "the Kubernetes API "+because(err), "remedy", remedy, "err", err)
	}
	return known
}
