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
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/vpcport/webhook"
)

// WebhookName is that of the webhook, of the chart's MutatingWebhookConfiguration, whose
// rules and namespaces are the operator's.
const WebhookName = "namespaces.branches.ports.berth.dev"

const (
	// look is how often it is seen whether the configuration is as it should be: an
	// upgrade may have made it anew.
	look = time.Minute
	// timeout bounds one look.
	timeout = 30 * time.Second
)

// controller keeps the namespaces of the configuration.
type controller struct {
	client client.Client // reads from the cache
	live   client.Reader // reads past it
	log    *slog.Logger
}

// Setup adds the controller to mgr, which needs a cache of VPCs and of Namespaces' metadata.
// It works while mgr leads.
func Setup(mgr ctrl.Manager, log *slog.Logger) error {
	c := controller{mgr.GetClient(), mgr.GetAPIReader(), log}
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: webhook.ConfigurationName}}}
	})
	err := ctrl.NewControllerManagedBy(mgr).Named("callers").
		WatchesMetadata(&corev1.Namespace{}, all, builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
		Watches(&v1alpha1.VPC{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(queue.Options(1, timeout)).
		Complete(queue.RetryConflicts(c.reconcile))
	if err != nil {
		return fmt.Errorf("controller of the webhook's callers: %w", err)
	}
	return nil
}

// reconcile has the configuration name the namespaces that it should. Without a
// configuration there is nothing to do: package webhook says that there is none.
func (c controller) reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	again := reconcile.Result{RequeueAfter: look}
	config := &admissionregistrationv1.MutatingWebhookConfiguration{}
	err := c.live.Get(ctx, client.ObjectKey{Name: webhook.ConfigurationName}, config)
	switch {
	case apierrors.IsNotFound(err):
		return again, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("read about which namespaces the webhook is asked: %w", err)
	}
	i := slices.IndexFunc(config.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == WebhookName })
	if i < 0 {
		return again, nil
	}
	namespaces, err := c.namespaces(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	before := config.DeepCopy()
	if !ask(&config.Webhooks[i], namespaces) {
		return again, nil
	}
	if err := c.client.Patch(ctx, config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return reconcile.Result{}, fmt.Errorf("have the webhook asked about pods of namespaces: %w", err)
	}
	c.log.Info("the webhook is asked about pods of other namespaces than before", "namespaces", len(namespaces))
	return again, nil
}

// namespaces are those about whose pods the webhook is to be asked.
func (c controller) namespaces(ctx context.Context) ([]string, error) {
	namespaces, vpcs := &metav1.PartialObjectMetadataList{}, &v1alpha1.VPCList{}
	namespaces.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	for _, list := range []client.ObjectList{namespaces, vpcs} {
		if err := c.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list %T from the cache: %w", list, err)
		}
	}
	return namespacesOf(namespaces.Items, vpcs.Items), nil
}
