package callers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/podnics/webhook"
	"github.com/berthnet/berth/internal/operator/queue"
)

// The webhooks of the chart's MutatingWebhookConfiguration whose rules and namespaces the operator writes.
const (
	WebhookName       = "namespaces.branches.ports.berth.dev" // pods with NICs of EC2 by their namespace alone
	PolicyWebhookName = "policies.ports.berth.dev"            // pods of namespaces with policies
)

// Caller is one of these webhooks.
type Caller struct {
	Webhook string
	// Namespaces returns the sorted names of the namespaces about whose pods it is to be asked. After an
	// error the webhook stays as it is.
	Namespaces func(context.Context) ([]string, error)
}

const (
	// look is the interval in which the configuration is checked. Somebody who creates it again removes the
	// namespaces, so that policies give pods nothing.
	look = 10 * time.Second
	// lookSoon is the interval after an incomplete write.
	lookSoon = 2 * time.Second
)

// Controller keeps the namespaces of the MutatingWebhookConfiguration.
type Controller struct {
	client  client.Client // reads from the cache
	live    client.Reader // reads from the API server
	log     *slog.Logger
	callers []Caller
	queue   queue.Queue
	asked   *asked
}

// Setup adds the controller to mgr, whose cache must have VPCs and the metadata of Namespaces. While mgr leads it
// works when one of these or an object of more changes, and when Look is called.
func Setup(mgr ctrl.Manager, log *slog.Logger, callers []Caller, more ...client.Object) (*Controller, error) {
	c := &Controller{client: mgr.GetClient(), live: mgr.GetAPIReader(), log: log, callers: callers, asked: newAsked()}
	all := queue.Named(func(client.Object) string { return webhook.ConfigurationName })
	b := ctrl.NewControllerManagedBy(mgr).Named("callers").
		WatchesMetadata(&corev1.Namespace{}, all, builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
		Watches(&v1alpha1.VPC{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	for _, o := range more {
		b = b.Watches(o, all, builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	}
	if err := c.queue.Complete(b, 1, c.reconcile); err != nil {
		return nil, fmt.Errorf("controller of the webhook's callers: %w", err)
	}
	return c, nil
}

// Look has the configuration checked now.
func (c *Controller) Look() { c.queue.Add(webhook.ConfigurationName) }

// reconcile writes the namespaces into the configuration.
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
		return reconcile.Result{}, fmt.Errorf("read the namespaces of the webhook configuration: %w", err)
	}
	before := config.DeepCopy()
	byWebhook, changed := c.edit(ctx, config)
	if changed {
		if err := c.client.Patch(ctx, config, objects.IfUnchanged(before)); err != nil {
			return reconcile.Result{}, fmt.Errorf("write the namespaces of the webhook configuration: %w", err)
		}
		for name, namespaces := range byWebhook {
			c.log.Info("the API server asks the webhook about pods of these namespaces", "webhook", name, "namespaces", len(namespaces))
		}
	}
	for name, namespaces := range byWebhook {
		c.asked.note(name, namespaces, nil)
	}
	if len(byWebhook) < len(c.callers) {
		return reconcile.Result{RequeueAfter: lookSoon}, nil // the reader of the namespaces reports the error
	}
	return reconcile.Result{RequeueAfter: look}, nil
}

// edit sets the namespaces of each caller in a configuration. It returns them by webhook, and whether that changed the
// configuration. A webhook whose namespaces are not known stays as it is, and is not in the result.
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

// ByVPC returns the namespaces whose annotation names an EC2 VPC, read from a cache of both.
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

// errUnread is the result of Asked before the configuration was read.
var errUnread = errors.New("it is not known yet which namespaces the webhook configuration names")

// asked are the namespaces of the webhooks, as the configuration was last.
type asked struct {
	mu   sync.Mutex // guards all and tell
	all  map[string]answer
	tell []func()
}

// answer is the state of one webhook.
type answer struct {
	namespaces []string
	err        error // why the API server may not ask it
}

func newAsked() *asked { return &asked{all: map[string]answer{}} }

// note sets the state of a webhook, and calls those that registered by Changed if it has changed.
func (a *asked) note(webhook string, namespaces []string, err error) {
	a.mu.Lock()
	before, known := a.all[webhook]
	a.all[webhook] = answer{namespaces, err}
	tell := a.tell
	a.mu.Unlock()
	if known && slices.Equal(before.namespaces, namespaces) && fmt.Sprint(before.err) == fmt.Sprint(err) {
		return
	}
	for _, f := range tell {
		f()
	}
}

// Changed registers tell, which is called when the result of Asked may have changed. It must return quickly.
func (c *Controller) Changed(tell func()) {
	c.asked.mu.Lock()
	defer c.asked.mu.Unlock()
	c.asked.tell = append(c.asked.tell, tell)
}

// Asked returns nil if the API server asks a webhook about new pods of a namespace, or else why not.
func (c *Controller) Asked(webhook, namespace string) error {
	c.asked.mu.Lock()
	defer c.asked.mu.Unlock()
	switch a, known := c.asked.all[webhook]; {
	case !known:
		return errUnread
	case a.err != nil:
		return a.err
	case !slices.Contains(a.namespaces, namespace):
		return errUnread
	}
	return nil
}

// namespacesOf are the sorted names of the namespaces whose annotation names an EC2 VPC.
func namespacesOf(namespaces []metav1.PartialObjectMetadata, vpcs []v1alpha1.VPC) []string {
	ofEC2 := map[string]bool{}
	for i := range vpcs {
		ofEC2[vpcs[i].Name] = vpcs[i].Spec.Provider == v1alpha1.ProviderEC2
	}
	var names []string
	for i := range namespaces {
		if n := &namespaces[i]; ofEC2[n.Annotations[v1alpha1.AnnotationVPC]] {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// ask sets the namespaces about whose new pods a webhook is asked. Without any it gets no rules, so that it is not
// asked. It reports whether that changed the webhook.
func ask(w *admissionregistrationv1.MutatingWebhook, namespaces []string) bool {
	var rules []admissionregistrationv1.RuleWithOperations
	selector := &metav1.LabelSelector{}
	if len(namespaces) > 0 {
		scope := admissionregistrationv1.NamespacedScope
		rules = []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: &scope},
		}}
		// The API server keeps this label, whatever others write.
		selector.MatchExpressions = []metav1.LabelSelectorRequirement{{
			Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: namespaces,
		}}
	}
	if equality.Semantic.DeepEqual(w.Rules, rules) && equality.Semantic.DeepEqual(w.NamespaceSelector, selector) {
		return false
	}
	w.Rules, w.NamespaceSelector = rules, selector
	return true
}
