package gatewayplan

import (
	"cmp"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Settings are common to all Egresses of a cluster.
type Settings struct {
	Image string // of the gateways
	Port  uint16 // UDP port of Foo-over-UDP
}

// The kinds of objects that belong to an Egress.
var (
	ServiceAccount = corev1.SchemeGroupVersion.WithKind("ServiceAccount")
	Role           = rbacv1.SchemeGroupVersion.WithKind("Role")
	RoleBinding    = rbacv1.SchemeGroupVersion.WithKind("RoleBinding")
	Service        = corev1.SchemeGroupVersion.WithKind("Service")
	Deployment     = appsv1.SchemeGroupVersion.WithKind("Deployment")
	Budget         = policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget")
)

// ReplicaSet is the kind through which a Deployment creates pods.
var ReplicaSet = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

// Kinds are the kinds of objects that an Egress may have, with its name and in its namespace, in order
// of creation: what the gateways need comes before the gateways.
var Kinds = []schema.GroupVersionKind{ServiceAccount, Role, RoleBinding, Service, Budget, Deployment}

// programName is the name of the gateway program and of its image.
const programName = "berth-egress"

// Labels select the objects and the gateways of an Egress.
func Labels(name string) map[string]string { return map[string]string{v1alpha1.LabelEgress: name} }

// Selector returns Labels as text, for autoscalers.
func Selector(name string) string { return v1alpha1.LabelEgress + "=" + name }

// Objects returns the desired objects of an Egress by kind, for server-side apply: they contain only
// the fields that Berth owns. The Egress must have no object of a missing kind. The problem says why
// the Deployment is missing; it is nil otherwise.
func Objects(e *v1alpha1.Egress, s Settings) (map[schema.GroupVersionKind]*unstructured.Unstructured, *Problem) {
	out := map[schema.GroupVersionKind]*unstructured.Unstructured{}
	add := func(kind schema.GroupVersionKind, o runtime.Object) {
		out[kind] = finished(e, kind, o)
	}
	no := false
	add(ServiceAccount, &corev1.ServiceAccount{AutomountServiceAccountToken: &no})
	add(Role, &rbacv1.Role{Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"egresses"}, ResourceNames: []string{e.Name}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"egressclientslices"}, Verbs: []string{"get", "list", "watch"}},
	}})
	add(RoleBinding, &rbacv1.RoleBinding{
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: e.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: e.Namespace, Name: e.Name}},
	})
	add(Service, service(e, s))
	if b := e.Spec.PodDisruptionBudget; b != nil {
		always := policyv1.AlwaysAllow // a gateway that is not ready must not block a drain
		add(Budget, &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: b.MinAvailable, MaxUnavailable: b.MaxUnavailable, UnhealthyPodEvictionPolicy: &always,
			Selector: &metav1.LabelSelector{MatchLabels: Labels(e.Name)},
		}})
	}
	pod, problem := podSpec(e, s)
	if problem != nil {
		return out, problem
	}
	add(Deployment, deployment(e))
	spec := out[Deployment].Object["spec"].(map[string]any)
	spec["template"].(map[string]any)["spec"] = pod
	if strategy := spec["strategy"].(map[string]any); strategy["type"] == string(appsv1.RecreateDeploymentStrategyType) {
		// Otherwise the API server would keep its earlier default, and reject it.
		strategy["rollingUpdate"] = nil
	}
	return out, nil
}

func service(e *v1alpha1.Egress, s Settings) *corev1.Service {
	dual := corev1.IPFamilyPolicyPreferDualStack
	svc := &corev1.Service{Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, Selector: Labels(e.Name), IPFamilyPolicy: &dual,
		SessionAffinity: cmp.Or(e.Spec.SessionAffinity, corev1.ServiceAffinityClientIP),
		Ports:           []corev1.ServicePort{{Name: portFoU, Protocol: corev1.ProtocolUDP, Port: int32(s.Port), TargetPort: intstr.FromInt32(int32(s.Port))}},
	}}
	if svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		svc.Spec.SessionAffinityConfig = e.Spec.SessionAffinityConfig
	}
	return svc
}

// deployment returns the Deployment of the gateways, without its pod spec.
func deployment(e *v1alpha1.Egress) *appsv1.Deployment {
	replicas := int32(1)
	if e.Spec.Replicas != nil {
		replicas = *e.Spec.Replicas
	}
	labels, annotations := map[string]string{"app.kubernetes.io/name": programName}, map[string]string{}
	if t := e.Spec.Template; t != nil {
		for k, v := range t.Metadata.Labels {
			labels[k] = string(v)
		}
		for k, v := range t.Metadata.Annotations {
			annotations[k] = v
		}
	}
	for k, v := range Labels(e.Name) {
		labels[k] = v
	}
	annotations[v1alpha1.AnnotationEgressGateway] = "true"
	return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: Labels(e.Name)}, Strategy: strategy(e.Spec.Strategy),
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations}},
	}}
}

// strategy returns how gateways are replaced. It spells out the defaults of a Deployment (Kubernetes
// documentation, "Deployments", "Rolling Update Deployment"), so that Berth owns these fields and
// can remove them.
func strategy(s *appsv1.DeploymentStrategy) appsv1.DeploymentStrategy {
	var out appsv1.DeploymentStrategy
	if s != nil {
		out = *s.DeepCopy()
	}
	out.Type = cmp.Or(out.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if out.Type != appsv1.RollingUpdateDeploymentStrategyType {
		return appsv1.DeploymentStrategy{Type: out.Type}
	}
	if out.RollingUpdate == nil {
		out.RollingUpdate = &appsv1.RollingUpdateDeployment{}
	}
	quarter := intstr.FromString("25%")
	if out.RollingUpdate.MaxSurge == nil {
		out.RollingUpdate.MaxSurge = &quarter
	}
	if out.RollingUpdate.MaxUnavailable == nil {
		out.RollingUpdate.MaxUnavailable = &quarter
	}
	return out
}

// finished converts an object for server-side apply, with its name, labels and owner.
func finished(e *v1alpha1.Egress, kind schema.GroupVersionKind, o runtime.Object) *unstructured.Unstructured {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		panic(fmt.Sprintf("convert %s to unstructured: %v", kind.Kind, err)) //nolint:forbidigo // types of Kubernetes' own can be converted
	}
	delete(fields, "status")
	delete(fields, "metadata")
	withoutNulls(fields)
	u := &unstructured.Unstructured{Object: fields}
	u.SetGroupVersionKind(kind)
	u.SetNamespace(e.Namespace)
	u.SetName(e.Name)
	labels := Labels(e.Name)
	labels["app.kubernetes.io/name"], labels["app.kubernetes.io/managed-by"] = programName, v1alpha1.OwnerOperator
	u.SetLabels(labels)
	controls := true
	u.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "Egress", Name: e.Name, UID: e.UID, Controller: &controls,
	}})
	return u
}

// withoutNulls removes null fields, which a type has but nobody set.
func withoutNulls(fields map[string]any) {
	for k, v := range fields {
		switch v := v.(type) {
		case nil:
			delete(fields, k)
		case map[string]any:
			withoutNulls(v)
		}
	}
}
