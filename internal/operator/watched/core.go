package watched

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Nodes are all Nodes, with their labels, provider ID, readiness, addresses, and capacity for pods and branch interfaces.
var Nodes = Of(&corev1.Node{}, &corev1.NodeList{}, trimNode)

// WaitingPods are the pods that are bound to a node and wait for an address of their own, each with its node. The API server filters them, so
// that it sends only these few of 100,000 pods.
var WaitingPods = &Kind{
	Object: &corev1.Pod{}, List: func() client.ObjectList { return &corev1.PodList{} }, Within: Pods,
	Cache: cache.ByObject{
		Transform: trimPod,
		Field: fields.AndSelectors(
			fields.OneTermNotEqualSelector("spec.nodeName", ""),
			fields.OneTermEqualSelector("spec.hostNetwork", "false"),
			fields.OneTermEqualSelector("status.phase", string(corev1.PodPending)),
			fields.OneTermEqualSelector("status.podIP", ""),
		),
	},
}

// Pods are all pods that have not ended, each with its node, the annotations about NICs, and whether it waits for an address.
var Pods = &Kind{
	Object: &corev1.Pod{}, List: func() client.ObjectList { return &corev1.PodList{} }, Within: EgressPods,
	Cache: cache.ByObject{Transform: trimPod, Field: notEnded},
}

// EgressPods are the same pods, each additionally with its labels, the annotations about Egresses, its addresses, and whether it is ready;
// gateways also have their owners, and the reason why they are not ready.
var EgressPods = &Kind{
	Object: &corev1.Pod{}, List: func() client.ObjectList { return &corev1.PodList{} }, Within: PolicyPods,
	Cache: cache.ByObject{Transform: trimEgressPod, Field: notEnded},
}

// PolicyPods are the same pods; of each also the named ports of its containers and sidecars, for network policies.
var PolicyPods = &Kind{
	Object: &corev1.Pod{}, List: func() client.ObjectList { return &corev1.PodList{} },
	Cache: cache.ByObject{Transform: trimPolicyPod, Field: notEnded},
}

// notEnded selects pods that may still run.
var notEnded = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
)

// Waits reports whether a pod is one of WaitingPods, for readers of a cache that has Pods.
func Waits(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && !p.Spec.HostNetwork && p.Status.Phase == corev1.PodPending && p.Status.PodIP == ""
}

// Namespaces are all Namespaces, with their labels and Berth's annotations.
var Namespaces = Metadata(namespaceKind, nil, trimNamespace)

var namespaceKind = corev1.SchemeGroupVersion.WithKind("Namespace")

// Namespace returns an empty metadata object of a namespace, to be read from the cache.
func Namespace(name string) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.SetGroupVersionKind(namespaceKind)
	return o
}

// bare returns the metadata that identifies an object, and its age.
func bare(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
}

// annotated works like bare, but keeps some of the annotations.
func annotated(m metav1.ObjectMeta, keys ...string) metav1.ObjectMeta {
	out := bare(m)
	for _, key := range keys {
		if value, has := m.Annotations[key]; has {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[key] = value
		}
	}
	return out
}

func trimNode(in any) (any, error) {
	n, ok := in.(*corev1.Node)
	if !ok {
		return in, nil
	}
	status := corev1.NodeStatus{}
	if c := Readiness(n); c != nil {
		status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
	}
	if pods, ok := n.Status.Allocatable[corev1.ResourcePods]; ok {
		status.Allocatable = corev1.ResourceList{corev1.ResourcePods: pods}
	}
	if branches, ok := n.Status.Capacity[v1alpha1.ResourceBranches]; ok {
		status.Capacity = corev1.ResourceList{v1alpha1.ResourceBranches: branches}
	}
	for _, a := range n.Status.Addresses { // the webhook accepts calls from these addresses
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			status.Addresses = append(status.Addresses, a)
		}
	}
	spec := corev1.NodeSpec{ProviderID: n.Spec.ProviderID}
	if OutOfService(n) {
		spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}
	}
	labels := n.Labels
	n.ObjectMeta, n.Spec, n.Status = bare(n.ObjectMeta), spec, status
	n.Labels = labels // a VPC may take host names from any label
	return n, nil
}

// Trim is a cache.TransformFunc for kinds that users write. It drops fields of unlimited size that nobody reads here: managed fields, and
// annotations and labels that are not Berth's. Such objects must be written by patches, which preserve these fields.
func Trim(in any) (any, error) {
	if o, ok := in.(client.Object); ok {
		o.SetManagedFields(nil)
		o.SetAnnotations(own(o.GetAnnotations()))
		o.SetLabels(own(o.GetLabels()))
	}
	return in, nil
}

// own returns the entries whose keys are Berth's, or nil if there are none.
func own(all map[string]string) map[string]string {
	var out map[string]string
	for key, value := range all {
		if domain, _, _ := strings.Cut(key, "/"); domain == v1alpha1.GroupVersion.Group || strings.HasSuffix(domain, "."+v1alpha1.GroupVersion.Group) {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = value
		}
	}
	return out
}

func trimPod(in any) (any, error) {
	if p, ok := in.(*corev1.Pod); ok {
		p.ObjectMeta = annotated(p.ObjectMeta, portKeys...)
		p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork}
		p.Status = corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP}
	}
	return in, nil
}

// portKeys are the annotations of pods about NICs.
var portKeys = []string{
	v1alpha1.AnnotationVPC, v1alpha1.AnnotationNICs, v1alpha1.AnnotationNICPolicy, v1alpha1.AnnotationNICPolicyOverlap, corev1.MirrorPodAnnotationKey,
}

func trimEgressPod(in any) (any, error) {
	p, ok := in.(*corev1.Pod)
	if !ok {
		return in, nil
	}
	keys := slices.Clone(portKeys)
	for key := range p.Annotations {
		if strings.HasPrefix(key, v1alpha1.AnnotationEgressPrefix) || strings.HasPrefix(key, v1alpha1.AnnotationCoilEgressPrefix) {
			keys = append(keys, key)
		}
	}
	_, isGateway := p.Labels[v1alpha1.LabelEgress]
	status := corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady || c.Type == corev1.PodReadyToStartContainers || isGateway && (c.Type == corev1.PodScheduled || c.Type == corev1.ContainersReady) {
			status.Conditions = append(status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
		}
	}
	labels, owners := p.Labels, p.OwnerReferences
	p.ObjectMeta = annotated(p.ObjectMeta, keys...)
	p.Labels = labels
	if isGateway {
		p.OwnerReferences = owners
		for _, c := range p.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil {
				status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, State: corev1.ContainerState{Waiting: w}})
			}
		}
	}
	p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork}
	p.Status = status
	return p, nil
}

func trimPolicyPod(in any) (any, error) {
	p, ok := in.(*corev1.Pod)
	if !ok {
		return in, nil
	}
	containers, sidecars := withPorts(p.Spec.Containers), withPorts(p.Spec.InitContainers)
	out, err := trimEgressPod(p)
	p.Spec.Containers, p.Spec.InitContainers = containers, sidecars
	return out, err
}

// withPorts returns the named ports of the containers that have some.
func withPorts(all []corev1.Container) (out []corev1.Container) {
	for _, c := range all {
		var ports []corev1.ContainerPort
		for _, p := range c.Ports {
			if p.Name != "" {
				ports = append(ports, corev1.ContainerPort{Name: p.Name, ContainerPort: p.ContainerPort, Protocol: p.Protocol})
			}
		}
		if len(ports) > 0 {
			out = append(out, corev1.Container{Ports: ports, RestartPolicy: c.RestartPolicy})
		}
	}
	return out
}

func trimNamespace(in any) (any, error) {
	if o, ok := in.(*metav1.PartialObjectMetadata); ok {
		labels := o.Labels
		o.ObjectMeta = annotated(o.ObjectMeta, v1alpha1.AnnotationPool, v1alpha1.AnnotationVPC, v1alpha1.AnnotationEgressSelectableFrom)
		o.Labels = labels
	}
	return in, nil
}

// Readiness returns a Node's condition Ready, or nil if it has not been written yet.
func Readiness(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c
		}
	}
	return nil
}

// AddressesOf returns the IP addresses of a Node.
func AddressesOf(n *corev1.Node) (addrs []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs
}

// Ready reports whether a Node's condition Ready is true.
func Ready(n *corev1.Node) bool {
	c := Readiness(n)
	return c != nil && c.Status == corev1.ConditionTrue
}

// OutOfService reports whether a Node has the taint node.kubernetes.io/out-of-service, by which an administrator confirms that it is shut down
// and runs no pods (Kubernetes documentation, "Node Shutdowns").
func OutOfService(n *corev1.Node) bool {
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeOutOfService {
			return true
		}
	}
	return false
}

// NodeChanges filters the frequent updates of Nodes down to those that change the state extracted by a function.
func NodeChanges[S comparable](state func(*corev1.Node) S) builder.Predicates {
	return builder.WithPredicates(nodeChanges(state))
}

func nodeChanges[S comparable](state func(*corev1.Node) S) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*corev1.Node)
		after, okAfter := e.ObjectNew.(*corev1.Node)
		return okBefore && okAfter && state(before) != state(after)
	}}
}
