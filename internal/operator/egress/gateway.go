package egress

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
)

// IsGateway tells whether a pod is a gateway of the Egress of its namespace that its label names:
// one that the Egress's Deployment has made, and not one that looks like it. It reads what makes pods
// from cached, which has Makers, and from live what the cache does not have yet. The Deployment's
// being the Egress's is asked too.
func IsGateway(ctx context.Context, cached, live client.Reader, p *corev1.Pod) (bool, error) {
	name := p.Labels[v1alpha1.LabelEgress]
	owner := metav1.GetControllerOf(p)
	if name == "" || owner == nil || owner.Kind != gatewayplan.ReplicaSet.Kind {
		return false, nil
	}
	of, deployment := metadata(gatewayplan.ReplicaSet), &appsv1.Deployment{}
	for what, at := range map[client.Object]string{of: owner.Name, deployment: name} {
		key := client.ObjectKey{Namespace: p.Namespace, Name: at}
		err := cached.Get(ctx, key, what)
		if apierrors.IsNotFound(err) {
			err = live.Get(ctx, key, what)
		}
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("look who made pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	// Without its label the cache does not have a ReplicaSet, and no Egress's Deployment makes such.
	if of.Labels[v1alpha1.LabelEgress] != name {
		return false, nil
	}
	by := metav1.GetControllerOf(deployment)
	return by != nil && by.Kind == "Egress" && by.Name == name && gatewayplan.IsGateway(name, p, of, deployment.UID), nil
}
