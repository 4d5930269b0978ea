package egress

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
	"github.com/berthnet/berth/internal/operator/watched"
)

// Egresses are all, which package clients reads too.
var Egresses = watched.Of(&v1alpha1.Egress{}, &v1alpha1.EgressList{}, trimEgress)

func trimEgress(in any) (any, error) {
	if e, ok := in.(*v1alpha1.Egress); ok {
		gatewayplan.Trim(e)
	}
	return watched.Trim(in)
}

// Watches are the kinds that the cache of a manager with Setup keeps.
func Watches() []*watched.Kind {
	return append([]*watched.Kind{Egresses, watched.EgressPods, services, accounts, roles, bindings, budgets}, Makers...)
}

// Makers are the kinds of what makes gateways' pods, which IsGateway reads.
var Makers = []*watched.Kind{deployments, replicaSets}

// Of the objects of Egresses, which their label selects, the cache keeps the metadata, and of two
// kinds what the status needs.
var (
	services    = labeled(watched.Of(&corev1.Service{}, &corev1.ServiceList{}, trimService))
	deployments = labeled(watched.Of(&appsv1.Deployment{}, &appsv1.DeploymentList{}, trimDeployment))
	accounts    = metadataOf(gatewayplan.ServiceAccount)
	roles       = metadataOf(gatewayplan.Role)
	bindings    = metadataOf(gatewayplan.RoleBinding)
	budgets     = metadataOf(gatewayplan.Budget)
	// ReplicaSets have the label of the pods that they make.
	replicaSets = metadataOf(gatewayplan.ReplicaSet)
)

// ofEgresses selects what has the label of an Egress.
var ofEgresses = func() labels.Selector {
	s := labels.NewSelector()
	if r, err := labels.NewRequirement(v1alpha1.LabelEgress, selection.Exists, nil); err == nil {
		s = s.Add(*r)
	}
	return s
}()

func labeled(k *watched.Kind) *watched.Kind {
	k.Cache.Label = ofEgresses
	return k
}

func metadataOf(kind schema.GroupVersionKind) *watched.Kind {
	return watched.Metadata(kind, ofEgresses, nil)
}

func metadata(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(kind)
	return o
}

// emptyOf is an empty object of a kind, of the type that the cache keeps.
func emptyOf(kind schema.GroupVersionKind) client.Object {
	switch kind {
	case gatewayplan.Service:
		return &corev1.Service{}
	case gatewayplan.Deployment:
		return &appsv1.Deployment{}
	}
	return metadata(kind)
}

func trimService(in any) (any, error) {
	if s, ok := in.(*corev1.Service); ok {
		s.ManagedFields = nil
		s.Spec, s.Status = corev1.ServiceSpec{ClusterIPs: s.Spec.ClusterIPs}, corev1.ServiceStatus{}
	}
	return in, nil
}

func trimDeployment(in any) (any, error) {
	if d, ok := in.(*appsv1.Deployment); ok {
		d.ManagedFields = nil
		var conditions []appsv1.DeploymentCondition
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure {
				conditions = append(conditions, c)
			}
		}
		d.Spec, d.Status = appsv1.DeploymentSpec{}, appsv1.DeploymentStatus{Conditions: conditions}
	}
	return in, nil
}

// byEgress is the field by which the cache finds the gateways of an Egress.
const byEgress = "egressOfGateway"

// Index has the cache find objects by the fields that this package reads them by. It is
// called once for a manager, before the manager starts.
func Index(ctx context.Context, ix client.FieldIndexer) error {
	return watched.Index(ctx, ix, watched.By(byEgress, func(p *corev1.Pod) []string {
		if name, has := p.Labels[v1alpha1.LabelEgress]; has {
			return []string{name}
		}
		return nil
	}))
}

// IsGateway reports whether a pod is a gateway of the Egress that its label names: whether the
// Egress's own Deployment made it, and it does not only look so. It reads the ReplicaSet and the
// Deployment from cached, which has Makers, and from live what the cache does not have yet.
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
			return false, fmt.Errorf("find the Deployment of pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	// The cache lacks ReplicaSets without the label, and no Egress's Deployment makes such.
	if of.Labels[v1alpha1.LabelEgress] != name {
		return false, nil
	}
	by := metav1.GetControllerOf(deployment)
	return by != nil && by.Kind == "Egress" && by.Name == name && gatewayplan.IsGateway(name, p, of, deployment.UID), nil
}
