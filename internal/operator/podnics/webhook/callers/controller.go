package callers

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/podnics/webhook"
	"github.com/berthnet/berth/internal/operator/queue"
)

// The webhooks of the chart's MutatingWebhookConfiguration whose rules and namespaces are the
// operator's.
const (
	WebhookName       = "namespaces.branches.ports.berth.dev" // about pods with NICs of EC2 by their namespace alone
	PolicyWebhookName = "policies.ports.berth.dev"            // about pods of namespaces with policies
)

// Caller is one of them.
type Caller struct {
	Webhook string
	// Namespaces are the names, in order, of those about whose pods it is to be asked. After
	// an error it stays as it is.
	Namespaces func(context.Context) ([]string, error)
}

const (
	// look is how often it is seen whether the configuration is as it should be: who makes it
	// anew takes the namespaces away, and with them what policies give to pods.
	look = 10 * time.Second
	// lookSoon is after one that did not do all.
	lookSoon = 2 * time.Second
	// timeout bounds one look.
	timeout = 30 * time.Second
)

// Controller keeps the namespaces of the configuration.
type Controller struct {
	client  client.Client // reads from the cache
	live    client.Reader // reads past it
	log     *slog.Logger
	callers []Caller
	queue   queue.Queue
	asked   *asked
}

// Setup adds the controller to mgr, which needs a cache of VPCs and of Namespaces' metadata.
// It works while mgr leads, when one of these changes, an object of more, or when Look is called.
func Setup(mgr ctrl.Manager, log *slog.Logger, callers []Caller, more ...client.Object) (*Controller, error) {
	c := &Controller{client: mgr.GetClient(), live: mgr.GetAPIReader(), log: log, callers: callers, asked: newAsked()}
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{queue.Request(webhook.ConfigurationName)}
	})
	b := ctrl.NewControllerManagedBy(mgr).Named("callers").
		WatchesMetadata(&corev1.Namespace{}, all, builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
		Watches(&v1alpha1.VPC{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	for _, o := range more {
		b = b.Watches(o, all, builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	}
	err := b.WatchesRawSource(c.queue.Source()).WithOptions(queue.Options(1, timeout)).Complete(queue.RetryConflicts(c.reconcile))
	if err != nil {
		return nil, fmt.Errorf("controller of the webhook's callers: %w", err)
	}
	return c, nil
}

// Look has it seen now whether the configuration is as it should be.
func (c *Controller) Look() { c.queue.Add(webhook.ConfigurationName) }

// reconcile has the configuration name the namespaces that it should.
func (c *Controller) reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	config := &admissionregistrationv1.MutatingWebhookConfiguration{}
	err := c.live.Get(ctx, client.ObjectKey{Name: webhook.ConfigurationName}, config)
	if apierrors.IsNotFound(err) { // package webhook says so too
		for _, one := range c.callers {
			c.asked.note(one.Webhook, nil, fmt.Errorf("there is no MutatingWebhookConfiguration %s, expected that of the chart", webhook.ConfigurationName))
		}
		return reconcile.Result{RequeueAfter: look}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read about which namespaces the webhook is asked: %w", err)
	}
	before := config.DeepCopy()
	byWebhook, changed := c.edit(ctx, config)
	if changed {
		if err := c.client.Patch(ctx, config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return reconcile.Result{}, fmt.Errorf("have the webhook asked about pods of namespaces: %w", err)
		}
		for name, namespaces := range byWebhook {
			c.log.Info("the API server asks the webhook about pods of these namespaces", "webhook", name, "namespaces", len(namespaces))
		}
	}
	for name, namespaces := range byWebhook {
		c.asked.note(name, namespaces, nil)
	}
	if len(byWebhook) < len(c.callers) {
		return reconcile.Result{RequeueAfter: lookSoon}, nil // whoever reads the namespaces says what is wrong
	}
	return reconcile.Result{RequeueAfter: look}, nil
}

// edit has a configuration name the namespaces of each caller, and tells which, and whether
// that changed it. One whose namespaces are not known stays as it is, and is not told of.
func (c *Controller) edit(ctx context.Context, config *admissionregistrationv1.MutatingWebhookConfiguration) (byWebhook map[string][]string, changed bool) {
	byWebhook = map[string][]string{}
	for _, one := range c.callers {
		i := slices.IndexFunc(config.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == one.Webhook })
		if i < 0 {
			c.asked.note(one.Webhook, nil, fmt.Errorf("MutatingWebhookConfiguration %s has no webhook %s, expected that of the chart", webhook.ConfigurationName, one.Webhook))
			continue
		}
		namespaces, err := one.Namespaces(ctx)
		if err != nil {
			c.asked.note(one.Webhook, nil, err)
			continue
		}
		byWebhook[one.Webhook] = namespaces
		changed = ask(&config.Webhooks[i], namespaces) || changed
	}
	return byWebhook, changed
}

// ByVPC are the namespaces whose VPC is one of EC2, as a cache of both knows them.
func ByVPC(r client.Reader) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		namespaces, vpcs := &metav1.PartialObjectMetadataList{}, &v1alpha1.VPCList{}
		namespaces.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
		for _, list := range []client.ObjectList{namespaces, vpcs} {
			if err := r.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
				return nil, fmt.Errorf("list %T from the cache: %w", list, err)
			}
		}
		return namespacesOf(namespaces.Items, vpcs.Items), nil
	}
}
