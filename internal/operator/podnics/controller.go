package podnics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/podnics/warm"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
)

var _ = failpoint.Register(
	"operator.port.nic.before", "operator.port.nic.after", "operator.port.remove.before", "operator.port.remove.after",
	"operator.port.keep.after", "operator.port.create.before", "operator.port.create.after",
	"operator.port.record.before", "operator.port.record.after", "operator.port.change.before", "operator.port.change.after",
	"operator.port.delete.before", "operator.port.delete.after", "operator.port.forget.before", "operator.port.forget.after",
)

// Options are what a Controller needs to know. Zero durations take the defaults named.
type Options struct {
	// Cluster is the cluster's name, by which ports are told from those of others.
	Cluster  string
	Networks Networks
	// First is the first interface of pods; {eth0, IsPort: true} when zero.
	First nicrequest.First

	// PoliciesSince tells when the oldest policy of a namespace was made that may give its pods
	// a NIC; false without any, or nil.
	PoliciesSince func(ctx context.Context, namespace string) (time.Time, bool)

	Clock   clock.Clock
	Logger  *slog.Logger
	Metrics *Metrics // nil: nothing is counted

	// Settle is how long what was asked of a provider may take to show; 1 min.
	Settle time.Duration
	// UnplugGrace is how long a port waits for the node that may have it plugged, once
	// its pod is gone or the node is not ready; 1 min.
	UnplugGrace time.Duration
	// Listing is how often all ports of Berth are listed, by which is seen what others
	// did to them; 1 min.
	Listing time.Duration
	// Orphans is how often ports of no PodNIC are looked for, in such a listing; 10 min.
	Orphans time.Duration
	// OrphanAge is how long a port of no PodNIC must have been seen before it is
	// deleted; 10 min.
	OrphanAge time.Duration
	// WarmIdle is for how long ports are kept ready for the pods of a node after one of them last
	// needed such; 10 min. WarmKeep is for how long one is kept that is more than is wanted; 1 min.
	WarmIdle, WarmKeep time.Duration
}

const (
	// podWorkers and nicWorkers are how many objects are reconciled at once. It is
	// nearly all waiting for the API server; the calls to providers are not made in it.
	podWorkers = 16
	nicWorkers = 16
	// reconcileTimeout bounds the reconciliation of one object.
	reconcileTimeout = 30 * time.Second
)

// Controller works on the NICs of pods.
type Controller struct {
	o      Options
	client client.Client // reads from the cache
	live   client.Reader // reads past it
	events events.EventRecorder
	book   *book
	desks  *desks
	told   *told
	past   *past
	pool   *warm.Pool

	pods, nics queue.Queue
}

// Setup adds the controllers to mgr, whose cache must have been made with Watches and
// Index. They work while mgr leads.
func Setup(mgr ctrl.Manager, o Options) (*Controller, error) {
	if o.Cluster == "" || o.Networks == nil {
		return nil, errors.New("controllers of VPC ports: the cluster's name and Networks are needed")
	}
	o.First = cmp.Or(o.First, nicrequest.First{Name: "eth0", IsPort: true})
	if o.PoliciesSince == nil {
		o.PoliciesSince = func(context.Context, string) (time.Time, bool) { return time.Time{}, false }
	}
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.Real{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Metrics = cmp.Or(o.Metrics, NewMetrics())
	o.Settle = cmp.Or(o.Settle, time.Minute)
	o.UnplugGrace = cmp.Or(o.UnplugGrace, time.Minute)
	o.Listing = cmp.Or(o.Listing, time.Minute)
	o.Orphans = cmp.Or(o.Orphans, 10*time.Minute)
	o.OrphanAge = cmp.Or(o.OrphanAge, 10*time.Minute)
	c := &Controller{
		o: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder(v1alpha1.OwnerOperator),
		told: newTold(), past: newPast(),
	}
	c.book = newBook(o.Clock, o.Settle)
	c.book.again = func(key types.NamespacedName) { c.nics.AddObject(key, 0) }
	c.desks = newDesks(o.Clock, c.answered)
	c.pool = c.newPool()
	err := errors.Join(
		ctrl.NewControllerManagedBy(mgr).Named("portpod").For(&corev1.Pod{}).
			Watches(&v1alpha1.PodNIC{}, handler.EnqueueRequestsFromMapFunc(podRequests)).
			WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(c.podsOfNamespace), namespaceChanges()).
			WatchesRawSource(c.pods.Source()).WithOptions(queue.Options(podWorkers, reconcileTimeout)).
			Complete(queue.RetryConflicts(c.reconcilePod)),
		ctrl.NewControllerManagedBy(mgr).Named("podnic").For(&v1alpha1.PodNIC{}).
			Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.nicsOfPod)).
			Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.nicsOfNode), nodeChanges()).
			WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(c.nicsOfNamespace), namespaceChanges()).
			WatchesRawSource(c.nics.Source()).WithOptions(queue.Options(nicWorkers, reconcileTimeout)).
			Complete(queue.RetryConflicts(c.reconcileNIC)),
		mgr.Add(manager.RunnableFunc(c.work)),
		mgr.Add(manager.RunnableFunc(c.sweep)),
		mgr.Add(manager.RunnableFunc(c.pool.Run)),
	)
	if err != nil {
		return nil, fmt.Errorf("controllers of VPC ports: %w", err)
	}
	o.Networks.Changed(c.vpcChanged)
	return c, nil
}

// work has the calls to providers made until ctx ends, and those under way finish.
func (c *Controller) work(ctx context.Context) error {
	c.book.begin()
	c.desks.open(context.WithoutCancel(ctx))
	<-ctx.Done()
	c.desks.close()
	return nil
}

// podRequests are for the pods that a PodNIC is for or that has it.
func podRequests(_ context.Context, o client.Object) (out []reconcile.Request) {
	for _, name := range podsOf(o.(*v1alpha1.PodNIC)) {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}})
	}
	return out
}

// podsOfNamespace are for all pods of a namespace.
func (c *Controller) podsOfNamespace(ctx context.Context, o client.Object) (out []reconcile.Request) {
	list := &corev1.PodList{}
	if err := c.client.List(ctx, list, client.InNamespace(o.GetName()), client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return out
}

// nicsOfPod are for the PodNICs that are for a pod, that it has, and that it names.
func (c *Controller) nicsOfPod(ctx context.Context, o client.Object) (out []reconcile.Request) {
	out = c.nicsIn(ctx, client.InNamespace(o.GetNamespace()), client.MatchingFields{byPod: o.GetName()})
	for _, name := range namedObjects(o.(*corev1.Pod)) {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}})
	}
	return out
}

// nicsOfNamespace are for all PodNICs of a namespace, whose labels say what they may have.
func (c *Controller) nicsOfNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return c.nicsIn(ctx, client.InNamespace(o.GetName()))
}

// nicsIn are for the PodNICs that options select.
func (c *Controller) nicsIn(ctx context.Context, of ...client.ListOption) (out []reconcile.Request) {
	list := &v1alpha1.PodNICList{}
	if err := c.client.List(ctx, list, append(of, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil
	}
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return out
}

// nicsOfNode are for the PodNICs on a node. How many branches the node may have is the pool's matter too.
func (c *Controller) nicsOfNode(ctx context.Context, o client.Object) []reconcile.Request {
	c.pool.Changed()
	return c.nicsIn(ctx, client.MatchingFields{byNode: o.GetName()})
}

// nodeChanges passes on those updates of Nodes that change what hostOf and held read.
func nodeChanges() builder.Predicates {
	type state struct {
		ready, out       bool
		provider, labels string
		branches         int64
	}
	return watched.NodeChanges(func(n *corev1.Node) state {
		return state{watched.Ready(n), watched.OutOfService(n), n.Spec.ProviderID, labels.Set(n.Labels).String(), branchesIn(n)}
	})
}

func namespaceChanges() builder.Predicates {
	return builder.WithPredicates(predicate.Or(predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))
}

// vpcChanged has all reconciled that waits for a VPC.
func (c *Controller) vpcChanged(vpc string) {
	c.book.open(vpc)
	c.pool.Changed()
	ctx := context.Background()
	nics, pods := &v1alpha1.PodNICList{}, &corev1.PodList{}
	if err := c.client.List(ctx, nics, client.MatchingFields{ByVPC: vpc}, client.UnsafeDisableDeepCopy); err == nil {
		for i := range nics.Items {
			c.nics.AddObject(client.ObjectKeyFromObject(&nics.Items[i]), 0)
		}
	}
	if err := c.client.List(ctx, pods, client.UnsafeDisableDeepCopy); err == nil {
		for i := range pods.Items {
			if p := &pods.Items[i]; p.Annotations[v1alpha1.AnnotationVPC] == vpc || c.namespaceVPC(ctx, p.Namespace) == vpc {
				c.pods.AddObject(client.ObjectKeyFromObject(p), 0)
			}
		}
	}
}

// namespaceVPC is the VPC of a namespace's pods; empty without one.
func (c *Controller) namespaceVPC(ctx context.Context, namespace string) string {
	ns := c.namespace(ctx, namespace)
	return ns.Annotations[v1alpha1.AnnotationVPC]
}

// namespace is one as it is known, without anything if it is not.
func (c *Controller) namespace(ctx context.Context, name string) *metav1.PartialObjectMetadata {
	ns := watched.Namespace(name)
	if err := c.client.Get(ctx, client.ObjectKey{Name: name}, ns); err != nil {
		return watched.Namespace(name)
	}
	return ns
}

func (c *Controller) now() time.Time { return c.o.Clock.Now() }
