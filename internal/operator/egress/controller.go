package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
)

var _ = failpoint.Register(
	"operator.gateways.apply.before", "operator.gateways.apply.after", "operator.gateways.remove.before", "operator.gateways.remove.after",
	"operator.gateways.status.before", "operator.gateways.status.after",
)

// Options configure a Controller.
type Options struct {
	Settings gatewayplan.Settings // required

	Clock   clock.Clock
	Logger  *slog.Logger
	Metrics *Metrics // nil: metrics that are not registered

	// Retry is the delay before a write rejected by the API server is repeated, as the cause may
	// lie outside the Egress's spec, such as a quota; default 30 s.
	Retry time.Duration
}

const (
	// workers is how many Egresses are reconciled concurrently. They mostly wait for the API server.
	workers = 16
)

// Controller manages the gateways of Egresses.
type Controller struct {
	o       Options
	client  client.Client // reads from the cache
	live    client.Reader // reads from the API server
	events  events.EventRecorder
	applied *applied

	egresses queue.Queue
}

// Setup adds the controller to mgr, whose cache must have been created with Watches and Index.
// It runs while mgr leads.
func Setup(mgr ctrl.Manager, o Options) (*Controller, error) {
	if o.Settings.Image == "" || o.Settings.Port == 0 {
		return nil, errors.New("set up Egress controller: the gateway image and the Foo-over-UDP port are required")
	}
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.Real{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Metrics = cmp.Or(o.Metrics, NewMetrics())
	o.Retry = cmp.Or(o.Retry, 30*time.Second)
	c := &Controller{
		o: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder(v1alpha1.OwnerOperator), applied: newApplied(),
	}
	named := queue.Map(egressOf)
	b := ctrl.NewControllerManagedBy(mgr).Named("egress").For(&v1alpha1.Egress{}).
		Watches(&corev1.Pod{}, named, builder.WithPredicates(labelled())).
		Watches(&corev1.Service{}, named).Watches(&appsv1.Deployment{}, named)
	for _, k := range []*watched.Kind{accounts, roles, bindings, budgets} {
		b = b.WatchesMetadata(k.Object, named)
	}
	if err := c.egresses.Complete(b, workers, c.reconcile); err != nil {
		return nil, fmt.Errorf("set up Egress controller: %w", err)
	}
	return c, nil
}

// egressOf returns the Egress that an object's label names.
func egressOf(_ context.Context, o client.Object) []client.ObjectKey {
	name, has := o.GetLabels()[v1alpha1.LabelEgress]
	if !has {
		return nil
	}
	return []client.ObjectKey{{Namespace: o.GetNamespace(), Name: name}}
}

// labelled passes events of objects that have, or had, the label of an Egress.
func labelled() predicate.Predicate {
	has := func(o client.Object) bool {
		_, has := o.GetLabels()[v1alpha1.LabelEgress]
		return has
	}
	f := predicate.NewPredicateFuncs(has)
	f.UpdateFunc = func(e event.UpdateEvent) bool { return has(e.ObjectOld) || has(e.ObjectNew) }
	return f
}

// reconcile brings the objects of an Egress to the desired state, and writes its status.
func (c *Controller) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	e, err := objects.Get[v1alpha1.Egress](ctx, c.client, q.NamespacedName)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case e == nil:
		c.applied.forget(q.NamespacedName)
		return reconcile.Result{}, nil
	case e.DeletionTimestamp != nil:
		return reconcile.Result{}, nil // Kubernetes deletes its objects
	}
	again, problem, err := c.provide(ctx, e)
	// Nodes learn of gateways from the status, so it is written even after errors.
	failed := c.writeStatus(ctx, e, problem)
	return reconcile.Result{RequeueAfter: again}, errors.Join(err, failed)
}

// seen returns the cached state of an Egress.
func (c *Controller) seen(ctx context.Context, e *v1alpha1.Egress) (gatewayplan.Seen, error) {
	var seen gatewayplan.Seen
	key := client.ObjectKeyFromObject(e)
	service, err := objects.Get[corev1.Service](ctx, c.client, key)
	if err != nil {
		return seen, err
	}
	if service != nil && metav1.IsControlledBy(service, e) && service.DeletionTimestamp == nil {
		seen.Service = service
	}
	deployment, err := objects.Get[appsv1.Deployment](ctx, c.client, key)
	if err != nil {
		return seen, err
	}
	if deployment != nil && metav1.IsControlledBy(deployment, e) {
		seen.Deployment = deployment
	}
	pods, err := objects.List[corev1.PodList](ctx, c.client, client.InNamespace(e.Namespace), client.MatchingFields{byEgress: e.Name})
	if err != nil {
		return seen, err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		// A pod that was a gateway stays one until it ends: its ReplicaSet may be deleted first.
		is := slices.ContainsFunc(e.Status.Gateways, func(g v1alpha1.EgressGateway) bool { return g.UID == string(p.UID) })
		if !is {
			if is, err = IsGateway(ctx, c.client, c.live, p); err != nil {
				return seen, err
			}
		}
		if is {
			seen.Pods = append(seen.Pods, p)
		} else {
			seen.Others = append(seen.Others, p)
		}
	}
	return seen, nil
}

// Known returns how many objects are known. It takes the lock that all work needs: if it does not
// return, the controller hangs.
func (c *Controller) Known() int { return c.applied.count() }

func (c *Controller) now() time.Time { return c.o.Clock.Now() }
