package podnics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/internal/vpcport"
)

var _ = failpoint.Register(
	"operator.port.nic.before", "operator.port.nic.after", "operator.port.remove.before", "operator.port.remove.after",
	"operator.port.keep.after", "operator.port.create.before", "operator.port.create.after",
	"operator.port.record.before", "operator.port.record.after", "operator.port.change.before", "operator.port.change.after",
	"operator.port.delete.before", "operator.port.delete.after", "operator.port.forget.before", "operator.port.forget.after",
)

// Networks are the VPCs whose providers are open. Its methods may be called concurrently and do no I/O.
type Networks interface {
	// Of returns an open VPC, or an error to show to users, for example that the VPC does not exist or its credentials are
	// rejected. A VPC stays open while its provider is unavailable.
	Of(vpc string) (Opened, error)
	// Changed registers a callback that receives the name of a VPC each time the result of Of may have changed, including
	// when the VPC is deleted. The callback must return quickly.
	Changed(tell func(vpc string))
}

// Opened is a VPC whose provider is open and has the VPC's network.
type Opened struct {
	UID      string // of the VPC object
	Provider vpcport.Provider
	Network  vpcport.Network // as last read
	Spec     v1alpha1.VPCSpec
}

// Options are the settings of a Controller. Zero durations mean the defaults given below.
type Options struct {
	// Cluster is the name of the cluster, with which its ports are marked.
	Cluster  string
	Networks Networks
	// First is the first interface of pods; default {eth0, IsPort: true}.
	First nicrequest.First

	// PoliciesSince returns when the oldest policy that may give NICs to a namespace's pods was created, or false if
	// there is none. The error is watched.ErrUnknown until it is known which kinds of policies there are.
	// Nil means no policies.
	PoliciesSince func(ctx context.Context, namespace string) (time.Time, bool, error)

	Clock   clock.Clock
	Logger  *slog.Logger
	Metrics *Metrics // nil: not exported

	// Settle is how long the effect of a call may take to show at the provider; default 1 min.
	Settle time.Duration
	// UnplugGrace is how long a port is kept for a node that may have it plugged after its pod is gone or the node is not
	// ready; default 1 min.
	UnplugGrace time.Duration
	// Listing is the interval at which all ports of Berth are listed to find drift; default 1 min.
	Listing time.Duration
	// Orphans is the interval at which a listing also looks for ports without a PodNIC; default 10 min.
	Orphans time.Duration
	// OrphanAge is how long a port without a PodNIC must have been seen before it is deleted; default 10 min.
	OrphanAge time.Duration
	// WarmIdle is how long a node keeps warm ports after its pods last needed one; default 10 min. WarmKeep is how long
	// a surplus warm port is kept; default 1 min.
	WarmIdle, WarmKeep time.Duration
}

// Controller gives pods their NICs in VPCs. Its parts hold the state and the locks.
type Controller struct {
	api       *kubeAPI
	states    *nicStates
	pods      *podReconciler
	nics      *nicReconciler
	collector *collector
	metrics   *Metrics
}

// Setup adds the controllers to mgr, whose cache must have been created with Watches and Index. They run while mgr leads.
func Setup(mgr ctrl.Manager, o Options) (*Controller, error) {
	if o.Cluster == "" || o.Networks == nil {
		return nil, errors.New("set up VPC port controllers: Cluster and Networks are required")
	}
	o.First = cmp.Or(o.First, nicrequest.First{Name: "eth0", IsPort: true})
	if o.PoliciesSince == nil {
		o.PoliciesSince = func(context.Context, string) (time.Time, bool, error) { return time.Time{}, false, nil }
	}
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.Real{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Metrics = cmp.Or(o.Metrics, NewMetrics())
	o.Settle = cmp.Or(o.Settle, time.Minute)
	o.UnplugGrace = cmp.Or(o.UnplugGrace, time.Minute)
	o.Listing = cmp.Or(o.Listing, time.Minute)
	o.Orphans = cmp.Or(o.Orphans, 10*time.Minute)
	o.OrphanAge = cmp.Or(o.OrphanAge, 10*time.Minute)

	api := &kubeAPI{client: mgr.GetClient(), live: mgr.GetAPIReader()}
	nics := &nicReconciler{o: o, api: api, events: newPodEvents(mgr.GetEventRecorder(v1alpha1.OwnerOperator))}
	states := newNICStates(o.Clock, o.Settle, func(key types.NamespacedName) { nics.queue.AddObject(key, 0) })
	history := newPodHistory(api, o.First)
	nics.states, nics.watch = states, &observer{o: o, api: api, history: history, states: states}
	nics.calls = newBatcher(o.Clock, nics.replied)
	nics.pool = newPool(o, api, states, func(vpc string) { nics.resume(states.backoffs.room(vpc)) })
	c := &Controller{
		api: api, states: states, nics: nics, metrics: o.Metrics,
		pods:      &podReconciler{o: o, api: api, history: history, states: states, events: nics.events, nics: &nics.queue},
		collector: &collector{o: o, api: api, states: states, pool: nics.pool, nics: &nics.queue},
	}
	err := errors.Join(
		c.pods.queue.Complete(ctrl.NewControllerManagedBy(mgr).Named("portpod").For(&corev1.Pod{}).
			Watches(&v1alpha1.PodNIC{}, queue.Map(podKeys)).
			WatchesMetadata(&corev1.Namespace{}, queue.Map(api.podsOfNamespace), namespaceChanges()),
			podWorkers, c.pods.reconcile),
		nics.queue.Complete(ctrl.NewControllerManagedBy(mgr).Named("podnic").For(&v1alpha1.PodNIC{}).
			Watches(&corev1.Pod{}, queue.Map(api.nicsOfPod)).
			Watches(&corev1.Node{}, queue.Map(c.nicsOfNode), nodeChanges()).
			WatchesMetadata(&corev1.Namespace{}, queue.Map(api.nicsOfNamespace), namespaceChanges()),
			nicWorkers, nics.reconcile),
		mgr.Add(manager.RunnableFunc(c.lead)),
		mgr.Add(manager.RunnableFunc(c.collector.run)),
		mgr.Add(manager.RunnableFunc(nics.pool.Run)),
	)
	if err != nil {
		return nil, fmt.Errorf("set up VPC port controllers: %w", err)
	}
	o.Networks.Changed(c.vpcChanged)
	return c, nil
}

// lead makes provider calls until ctx ends, and then waits for those in flight.
func (c *Controller) lead(ctx context.Context) error {
	c.states.begin()
	c.nics.calls.open(context.WithoutCancel(ctx))
	<-ctx.Done()
	c.nics.calls.close()
	return nil
}

// Known returns how many NICs are known. It takes the lock that all work needs: if it does not return, the controller
// hangs.
func (c *Controller) Known() int { return c.states.count() }

// nicsOfNode returns the keys of the PodNICs on a node. It also notifies the pool, which reads the node's branch capacity.
func (c *Controller) nicsOfNode(ctx context.Context, o client.Object) []client.ObjectKey {
	c.nics.pool.Changed()
	return c.api.nicKeys(ctx, client.MatchingFields{byNode: o.GetName()})
}

// vpcChanged queues all NICs and pods that may be waiting for a VPC.
func (c *Controller) vpcChanged(vpc string) {
	c.states.resume(c.states.backoffs.open(vpc))
	c.nics.pool.Changed()
	ctx := context.Background()
	for _, key := range c.api.nicKeys(ctx, client.MatchingFields{ByVPC: vpc}) {
		c.nics.queue.AddObject(key, 0)
	}
	pods, err := objects.List[corev1.PodList](ctx, c.api.client)
	if err != nil {
		return // the cache is not filled yet: all pods will be reconciled
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Annotations[v1alpha1.AnnotationVPC] == vpc || c.api.namespaceVPC(ctx, p.Namespace) == vpc {
			c.pods.queue.AddObject(client.ObjectKeyFromObject(p), 0)
		}
	}
}

// nodeChanges filters updates of Nodes down to changes that hostOf, holdOf and the pool depend on.
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
