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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
)

var _ = failpoint.Register(
	"operator.gateways.apply.before", "operator.gateways.apply.after", "operator.gateways.remove.before", "operator.gateways.remove.after",
	"operator.gateways.status.before", "operator.gateways.status.after",
)

// Options are what a Controller needs to know.
type Options struct {
	Settings gatewayplan.Settings // needed

	Clock   clock.Clock
	Logger  *slog.Logger
	Metrics *Metrics // nil: nothing is counted

	// Retry is how long after a refusal of the API server that an edit of the Egress may
	// not be about, such as a quota, the same is asked again; 30 s.
	Retry time.Duration
}

const (
	// workers are how many Egresses are reconciled at once: nearly all of it is waiting
	// for the API server.
	workers = 16
	// reconcileTimeout bounds the reconciliation of one.
	reconcileTimeout = 30 * time.Second
)

// Controller works on Egresses.
type Controller struct {
	o      Options
	client client.Client // reads from the cache
	live   client.Reader // reads past it
	events events.EventRecorder
	book   *book

	egresses queue.Queue
}

// Setup adds the controller to mgr, whose cache must have been made with Watches and Index.
// It works while mgr leads.
func Setup(mgr ctrl.Manager, o Options) (*Controller, error) {
	if o.Settings.Image == "" || o.Settings.Port == 0 {
		return nil, errors.New("controller of Egresses: the image of gateways and the port of Foo-over-UDP are needed")
	}
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.Real{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Metrics = cmp.Or(o.Metrics, NewMetrics())
	o.Retry = cmp.Or(o.Retry, 30*time.Second)
	c := &Controller{
		o: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder(v1alpha1.OwnerOperator), book: newBook(),
	}
	named := handler.EnqueueRequestsFromMapFunc(egressOf)
	b := ctrl.NewControllerManagedBy(mgr).Named("egress").For(&v1alpha1.Egress{}).
		Watches(&corev1.Pod{}, named, builder.WithPredicates(labelled())).
		Watches(&corev1.Service{}, named).Watches(&appsv1.Deployment{}, named)
	for _, k := range []*watched.Kind{accounts, roles, bindings, budgets} {
		b = b.WatchesMetadata(k.Object, named)
	}
	err := b.WatchesRawSource(c.egresses.Source()).WithOptions(queue.Options(workers, reconcileTimeout)).
		Complete(queue.RetryConflicts(c.reconcile))
	if err != nil {
		return nil, fmt.Errorf("controller of Egresses: %w", err)
	}
	return c, nil
}

// egressOf is for the Egress whose an object is by its label.
func egressOf(_ context.Context, o client.Object) []reconcile.Request {
	name, has := o.GetLabels()[v1alpha1.LabelEgress]
	if !has {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}

// labelled passes on what has the label of an Egress, or had it.
func labelled() predicate.Predicate {
	has := func(o client.Object) bool {
		_, has := o.GetLabels()[v1alpha1.LabelEgress]
		return has
	}
	f := predicate.NewPredicateFuncs(has)
	f.UpdateFunc = func(e event.UpdateEvent) bool { return has(e.ObjectOld) || has(e.ObjectNew) }
	return f
}

// reconcile has an Egress have what it asks for, and says in its status how it does.
func (c *Controller) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	e := &v1alpha1.Egress{}
	if err := c.client.Get(ctx, q.NamespacedName, e); err != nil {
		c.book.forget(q.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if e.DeletionTimestamp != nil {
		return reconcile.Result{}, nil // Kubernetes removes what belongs to it
	}
	again, problem, err := c.provide(ctx, e)
	// The status tells nodes which gateways there are, whatever else fails.
	told := c.tell(ctx, e, problem)
	return reconcile.Result{RequeueAfter: again}, errors.Join(err, told)
}

// seen is what the cache has of an Egress.
func (c *Controller) seen(ctx context.Context, e *v1alpha1.Egress) (gatewayplan.Seen, error) {
	var seen gatewayplan.Seen
	key := client.ObjectKeyFromObject(e)
	service, deployment, pods := &corev1.Service{}, &appsv1.Deployment{}, &corev1.PodList{}
	if err := c.client.Get(ctx, key, service); err == nil && metav1.IsControlledBy(service, e) && service.DeletionTimestamp == nil {
		seen.Service = service
	} else if client.IgnoreNotFound(err) != nil {
		return seen, fmt.Errorf("read Service %s: %w", key, err)
	}
	if err := c.client.Get(ctx, key, deployment); err == nil && metav1.IsControlledBy(deployment, e) {
		seen.Deployment = deployment
	} else if client.IgnoreNotFound(err) != nil {
		return seen, fmt.Errorf("read Deployment %s: %w", key, err)
	}
	err := c.client.List(ctx, pods, client.InNamespace(e.Namespace), client.MatchingFields{byEgress: e.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return seen, fmt.Errorf("list gateways of Egress %s: %w", key, err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		// One that was a gateway is one until it ends: its ReplicaSet may go first.
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

// Known is how many objects are known. It takes the lock that all work needs: one that does
// not return tells that the controller hangs.
func (c *Controller) Known() int { return c.book.count() }

func (c *Controller) now() time.Time { return c.o.Clock.Now() }
