package clients

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
)

var _ = failpoint.Register(
	"operator.egressclient.make.before", "operator.egressclient.make.after", "operator.egressclient.change.before", "operator.egressclient.change.after",
	"operator.egressclient.remove.before", "operator.egressclient.remove.after", "operator.egressclient.ready.before", "operator.egressclient.ready.after",
	"operator.egressclient.slice.before", "operator.egressclient.slice.after", "operator.egressclient.drop.before", "operator.egressclient.drop.after",
	"operator.egressclient.status.before", "operator.egressclient.status.after",
)

// Options are what a Controller needs to know. What is zero takes the default named.
type Options struct {
	Namespace string       // Berth's own; empty: it is not known
	May       May          // any address may be
	Clock     clock.Clock  // the real one
	Logger    *slog.Logger // none
	Metrics   *Metrics     // nothing is counted
}

const (
	// podWorkers and egressWorkers are how many objects are reconciled at once. It is
	// nearly all waiting for the API server.
	podWorkers    = 16
	egressWorkers = 8
	// reconcileTimeout bounds the reconciliation of one object.
	reconcileTimeout = 30 * time.Second
	// betweenWrites is how long after its slices were written those of an Egress are
	// written again at the earliest, so that gateways are told of many clients at once.
	betweenWrites = 50 * time.Millisecond
	// betweenCounts is likewise for what an Egress's status says of its clients, which is
	// for people.
	betweenCounts = time.Second
	// Of many pods that a change of an Egress or of a namespace may affect, atOnce are
	// looked at once, and one after each apart, so that pods that start meanwhile do not
	// wait for them.
	atOnce = 200
	apart  = time.Millisecond
)

// Controller decides about clients of Egresses.
type Controller struct {
	o      Options
	client client.Client // reads from the cache
	live   client.Reader // reads past it
	events events.EventRecorder
	book   *book
	wrote  *wrote

	pods, egresses queue.Queue
}

// Setup adds the controllers to mgr, whose cache must have been made with Watches and
// Index. They work while mgr leads.
func Setup(mgr ctrl.Manager, o Options) (*Controller, error) {
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.Real{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Metrics = cmp.Or(o.Metrics, NewMetrics())
	c := &Controller{
		o: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder(v1alpha1.OwnerOperator),
		book: newBook(o.Clock, o.Namespace), wrote: newWrote(),
	}
	err := errors.Join(
		ctrl.NewControllerManagedBy(mgr).Named("egressclient").
			Watches(&corev1.Pod{}, c.onPods()).
			Watches(&v1alpha1.EgressClient{}, c.onClients()).
			WatchesMetadata(watched.Namespace(""), c.onNamespaces()).
			WatchesRawSource(c.pods.Source()).WithOptions(queue.Options(podWorkers, reconcileTimeout)).
			Complete(queue.RetryConflicts(c.reconcilePod)),
		ctrl.NewControllerManagedBy(mgr).Named("egressclients").For(&v1alpha1.Egress{}).
			Watches(&v1alpha1.EgressClientSlice{}, c.onSlices()).
			WatchesRawSource(c.egresses.Source()).WithOptions(queue.Options(egressWorkers, reconcileTimeout)).
			Complete(queue.RetryConflicts(c.reconcileEgress)),
	)
	if err != nil {
		return nil, fmt.Errorf("controllers of clients of Egresses: %w", err)
	}
	return c, nil
}

type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

func request(o client.Object) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)}
}

// onPods has a pod looked at of which something changed that decides, and those that claim
// addresses that it has, or had.
func (c *Controller) onPods() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q requests) {
			q.Add(request(e.Object))
			c.addClaimants(ctx, q, addressesOf(e.Object.(*corev1.Pod)))
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q requests) {
			before, after := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
			had, has := addressesOf(before), addressesOf(after)
			moved := !slices.Equal(had, has)
			if moved || before.UID != after.UID || before.Spec.NodeName != after.Spec.NodeName ||
				(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) ||
				!maps.Equal(before.Labels, after.Labels) || !maps.Equal(before.Annotations, after.Annotations) {
				q.Add(request(after))
			}
			if moved {
				c.addClaimants(ctx, q, append(had, has...))
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q requests) {
			q.Add(request(e.Object))
			c.addClaimants(ctx, q, addressesOf(e.Object.(*corev1.Pod)))
		},
	}
}

// onClients has the pod of an EgressClient looked at, and those that claim addresses that
// its node says, or said.
func (c *Controller) onClients() handler.EventHandler {
	of := func(o client.Object) []string { return said(o.(*v1alpha1.EgressClient)) }
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q requests) {
			q.Add(request(e.Object))
			c.addClaimants(ctx, q, of(e.Object))
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q requests) {
			q.Add(request(e.ObjectNew))
			if had, has := of(e.ObjectOld), of(e.ObjectNew); !slices.Equal(had, has) {
				c.addClaimants(ctx, q, append(had, has...))
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q requests) {
			q.Add(request(e.Object))
			c.addClaimants(ctx, q, of(e.Object))
		},
	}
}

// addClaimants has those pods looked at of which nodes say some addresses.
func (c *Controller) addClaimants(ctx context.Context, q requests, addresses []string) {
	for _, a := range addresses {
		list := &v1alpha1.EgressClientList{}
		if err := c.client.List(ctx, list, client.MatchingFields{byAddress: a}, client.UnsafeDisableDeepCopy); err != nil {
			return
		}
		for i := range list.Items {
			q.Add(request(&list.Items[i]))
		}
	}
}

// onNamespaces has pods looked at that a namespace decides about: its own that name Egresses, all
// its own if another Egress may select them than before, and those that Egresses of the namespace
// select if they may do so no more, or may now. Egresses are looked at of which the status is to say
// something else of it.
func (c *Controller) onNamespaces() handler.EventHandler {
	look := func(ctx context.Context, name string, all bool) {
		opts := []client.ListOption{client.InNamespace(name), client.UnsafeDisableDeepCopy}
		if !all {
			opts = append(opts, client.MatchingFields{byEgress: annotated})
		}
		list := &corev1.PodList{}
		if err := c.client.List(ctx, list, opts...); err == nil {
			c.lookAtPods(list.Items)
		}
	}
	changed := func(ctx context.Context, had, has *membership.Namespace) { // nil: there was none, or is none
		name, granted := "", false
		var missed, misses []membership.Ref
		if had != nil {
			name = had.Name
		}
		if has != nil {
			name, granted = has.Name, has.Granted()
		}
		before, now := c.book.grant(name, granted)
		was, is := before.Selectors(), now.Selectors()
		if had != nil {
			missed = was.MissingConsent(*had)
		}
		if has != nil {
			misses = is.MissingConsent(*has)
		}
		refs := slices.DeleteFunc(slices.Concat(missed, misses), func(r membership.Ref) bool { return slices.Contains(missed, r) && slices.Contains(misses, r) })
		if was.Granted(name) != is.Granted(name) {
			all := append(was.Active(name), is.Active(name)...)
			if keys, err := c.affected(ctx, all, before, now); err == nil {
				c.lookAt(keys)
			}
			refs = append(refs, all...)
		}
		c.book.lookForConsent(refs)
		c.touch(refs)
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, _ requests) {
			has := membership.ReadNamespace(e.Object)
			changed(ctx, nil, &has)
			look(ctx, has.Name, true)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, _ requests) {
			had, has := membership.ReadNamespace(e.ObjectOld), membership.ReadNamespace(e.ObjectNew)
			if had.Same(has) {
				return
			}
			before := c.book.known()
			changed(ctx, &had, &has)
			look(ctx, has.Name, !slices.Equal(before.Selectors().Of(had), c.book.known().Selectors().Of(has)))
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, _ requests) {
			had := membership.ReadNamespace(e.Object)
			changed(ctx, &had, nil)
		},
	}
}

// onSlices has the Egress looked at of which a slice changed.
func (c *Controller) onSlices() handler.EventHandler {
	of := func(o client.Object) reconcile.Request {
		return reconcile.Request{NamespacedName: types.NamespacedName(refOfSlice(o))}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q requests) { q.Add(of(e.Object)) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q requests) { q.Add(of(e.ObjectNew)) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q requests) {
			c.book.lost(refOfSlice(e.Object), e.Object.GetName(), e.Object.GetUID())
			q.Add(of(e.Object))
		},
	}
}

// lookAtPods has pods looked at, those first that have no address yet, and of many some
// later than others.
func (c *Controller) lookAtPods(pods []corev1.Pod) {
	keys := make([]types.NamespacedName, 0, len(pods))
	for _, starting := range []bool{true, false} {
		for i := range pods {
			if p := &pods[i]; (len(p.Status.PodIPs) == 0) == starting {
				keys = append(keys, client.ObjectKeyFromObject(p))
			}
		}
	}
	c.lookAt(keys)
}

func (c *Controller) lookAt(keys []types.NamespacedName) {
	for i, k := range keys {
		c.pods.AddObject(k, time.Duration(max(0, i-atOnce))*apart)
	}
}

// touch has Egresses looked at.
func (c *Controller) touch(refs []membership.Ref) {
	for _, ref := range refs {
		c.egresses.AddObject(types.NamespacedName(ref), 0)
	}
}

// Known is how many pods are known. It takes the lock that all work needs: one that does
// not return tells that the controller hangs.
func (c *Controller) Known() int { return c.book.count() }

func (c *Controller) now() time.Time { return c.o.Clock.Now() }
