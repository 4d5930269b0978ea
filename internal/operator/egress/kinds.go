package egress

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
	"github.com/berthnet/berth/internal/operator/watched"
)

// Egresses are all, as package clients reads them too.
var Egresses = &watched.Kind{
	Object: &v1alpha1.Egress{}, List: func() client.ObjectList { return &v1alpha1.EgressList{} },
	Cache: cache.ByObject{Transform: trimEgress},
}

func trimEgress(in any) (any, error) {
	if e, ok := in.(*v1alpha1.Egress); ok {
		gatewayplan.Trim(e)
	}
	return watched.Trim(in)
}

// Watches are the kinds that the process keeps in memory for Setup.
func Watches() []*watched.Kind {
	return append([]*watched.Kind{Egresses, watched.EgressPods, services, accounts, roles, bindings, budgets}, Makers...)
}

// Makers are the kinds of what makes gateways' pods, which IsGateway reads.
var Makers = []*watched.Kind{deployments, replicaSets}

// Of what belongs to Egresses, that is by its label, little is kept: of which Egress it is
// and which version, and of two kinds what the status tells.
var (
	services = &watched.Kind{
		Object: &corev1.Service{}, List: func() client.ObjectList { return &corev1.ServiceList{} },
		Cache: cache.ByObject{Label: ofEgresses, Transform: trimService},
	}
	deployments = &watched.Kind{
		Object: &appsv1.Deployment{}, List: func() client.ObjectList { return &appsv1.DeploymentList{} },
		Cache: cache.ByObject{Label: ofEgresses, Transform: trimDeployment},
	}
	accounts = metadataOf(gatewayplan.ServiceAccount)
	roles    = metadataOf(gatewayplan.Role)
	bindings = metadataOf(gatewayplan.RoleBinding)
	budgets  = metadataOf(gatewayplan.Budget)
	// ReplicaSets have the label of the pods that they make.
	replicaSets = metadataOf(gatewayplan.ReplicaSet)
)

// ofEgresses selects what has the label of an Egress.
var ofEgresses = labels.NewSelector().Add(labeled(v1alpha1.LabelEgress)...)

// labeled is that a label is there; nothing where the key is none.
func labeled(key string) []labels.Requirement {
	r, err := labels.NewRequirement(key, selection.Exists, nil)
	if err != nil {
		return nil
	}
	return []labels.Requirement{*r}
}

func metadataOf(kind schema.GroupVersionKind) *watched.Kind {
	return &watched.Kind{
		Object: metadata(kind),
		List: func() client.ObjectList {
			l := &metav1.PartialObjectMetadataList{}
			l.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
			return l
		},
		Cache: cache.ByObject{Label: ofEgresses, Transform: cache.TransformStripManagedFields()},
	}
}

func metadata(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(kind)
	return o
}

// cached is an empty object of a kind, of the type that the cache keeps.
func cached(kind schema.GroupVersionKind) client.Object {
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
// called once for a manager, before it starts.
func Index(ctx context.Context, ix client.FieldIndexer) error {
	err := ix.IndexField(ctx, &corev1.Pod{}, byEgress, func(o client.Object) []string {
		if name, has := o.GetLabels()[v1alpha1.LabelEgress]; has {
			return []string{name}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index pods by %s: %w", byEgress, err)
	}
	return nil
}
