package nicpolicy

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/internal/vpcport"
)

// workers is how many NICPolicies are reconciled at once.
const workers = 4

// Watches returns the kinds that the cache must keep for Setup and NewPolicies.
func Watches() []*watched.Kind {
	return []*watched.Kind{Objects, podnics.VPCs, watched.Namespaces}
}

// Options are the settings of the controller.
type Options struct {
	Namespace string // the operator's own, in which policies have no effect
	// Asked returns why the API server does not ask the webhook about the pods of a namespace; nil: it does. Changed
	// registers a function that is called when that may have changed.
	Asked   func(namespace string) error
	Changed func(tell func())
	Clock   clock.Clock
	Logger  *slog.Logger
}

// controller keeps the status of NICPolicies.
type controller struct {
	o      Options
	client client.Client // reads from the cache
	events events.EventRecorder
	queue  queue.Queue
}

// Setup adds the controller to mgr, whose cache must have been made with Watches. It works
// while mgr leads.
func Setup(mgr ctrl.Manager, o Options) error {
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.Real{})
	c := &controller{o: o, client: mgr.GetClient(), events: mgr.GetEventRecorder(v1alpha1.OwnerOperator)}
	err := c.queue.Complete(ctrl.NewControllerManagedBy(mgr).Named("nicpolicy").
		For(&v1alpha1.NICPolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.VPC{}, queue.Map(func(ctx context.Context, _ client.Object) []client.ObjectKey { return c.all(ctx) })).
		WatchesMetadata(&corev1.Namespace{}, queue.Map(func(ctx context.Context, o client.Object) []client.ObjectKey {
			return c.all(ctx, client.InNamespace(o.GetName()))
		}), builder.WithPredicates(predicate.Or(predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))),
		workers, c.reconcile)
	if err != nil {
		return fmt.Errorf("controller of NICPolicies: %w", err)
	}
	o.Changed(func() {
		for _, key := range c.all(context.Background()) {
			c.queue.AddObject(key, 0)
		}
	})
	return nil
}

// all are the keys of the NICPolicies that options select.
func (c *controller) all(ctx context.Context, in ...client.ListOption) []client.ObjectKey {
	return objects.Keys(ctx, c.client, &v1alpha1.NICPolicyList{}, in...)
}

// reconcile writes into a NICPolicy whether it is in force.
func (c *controller) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	o, err := objects.Get[v1alpha1.NICPolicy](ctx, c.client, q.NamespacedName)
	if o == nil {
		return reconcile.Result{}, err
	}
	ns := watched.Namespace(q.Namespace)
	if err := c.client.Get(ctx, client.ObjectKey{Name: q.Namespace}, ns); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read namespace %s from the cache: %w", q.Namespace, err)
	}
	vpcs, err := objects.List[v1alpha1.VPCList](ctx, c.client)
	if err != nil {
		return reconcile.Result{}, err
	}
	of := nicrequest.Namespace{Name: q.Namespace, Labels: ns.Labels, VPC: ns.Annotations[v1alpha1.AnnotationVPC]}
	is := verdictOf(o, of, vpcs.Items, c.o.Namespace, c.o.Asked(q.Namespace))
	before := o.DeepCopy()
	apimeta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: is.status(), Reason: is.reason, Message: is.message,
		ObservedGeneration: o.Generation, LastTransitionTime: metav1.NewTime(c.o.Clock.Now()),
	})
	if reflect.DeepEqual(before.Status, o.Status) {
		return reconcile.Result{}, nil
	}
	if err := objects.PatchStatus(ctx, c.client, o, client.MergeFrom(before)); err != nil {
		return reconcile.Result{}, err
	}
	c.tell(before, o, is)
	return reconcile.Result{}, nil
}

// tell makes an Event and a log line when the reason of a NICPolicy's condition Ready changes.
func (c *controller) tell(before, o *v1alpha1.NICPolicy, is verdict) {
	if was := apimeta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady); was != nil && was.Reason == is.reason {
		return
	}
	log := c.o.Logger.With("nicpolicy", o.Namespace+"/"+o.Name, "reason", is.reason)
	switch is.reason {
	case ReasonReady:
		log.Info("a NICPolicy is in force")
		c.events.Eventf(o, nil, corev1.EventTypeNormal, is.reason, "Report", "%s", is.message)
	case ReasonStarting:
	default:
		log.Warn("a NICPolicy is not in force", "because", is.message)
		c.events.Eventf(o, nil, corev1.EventTypeWarning, is.reason, "Report", "%s", vpcport.Cut(is.message, podnics.MaxNote))
	}
}

// The reasons of a NICPolicy's condition Ready.
const (
	ReasonReady             = "Ready"
	ReasonStarting          = "Starting"          // the API server does not ask the webhook about its pods yet; Ready is Unknown
	ReasonVPCNotFound       = "VPCNotFound"       // pods that it selects are rejected
	ReasonNotPossible       = "NotPossible"       // pods that it selects are rejected, or wait
	ReasonOperatorNamespace = "OperatorNamespace" // policies have no effect there
)

// verdict is whether a NICPolicy is in force.
type verdict struct{ reason, message string }

func (v verdict) status() metav1.ConditionStatus {
	switch v.reason {
	case ReasonReady:
		return metav1.ConditionTrue
	case ReasonStarting:
		return metav1.ConditionUnknown
	}
	return metav1.ConditionFalse
}

// verdictOf decides whether a NICPolicy of a namespace is in force, given all VPCs. unasked is why the webhook is not
// asked about its pods; nil: it is.
func verdictOf(o *v1alpha1.NICPolicy, of nicrequest.Namespace, vpcs []v1alpha1.VPC, operator string, unasked error) verdict {
	if of.Name == operator {
		return verdict{ReasonOperatorNamespace, fmt.Sprintf("namespace %s is the operator's, whose pods could not come without it: make the policy, and its pods, in another", operator)}
	}
	p, err := read(o)
	if err != nil {
		return verdict{ReasonNotPossible, err.Error()}
	}
	vpc, err := nicrequest.Choice{Counts: []nicrequest.Policy{p}}.VPC(of, vpcs)
	if err != nil {
		return verdict{ReasonVPCNotFound, err.Error()}
	}
	if err := nicrequest.CheckPolicy(p, of, vpc).Err(); err != nil {
		return verdict{ReasonNotPossible, err.Error()}
	}
	if unasked != nil {
		return verdict{ReasonStarting, unasked.Error()}
	}
	return verdict{ReasonReady, "pods that it selects get a NIC in VPC " + vpc.Name + " when they are made"}
}
