package podnics

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/watched"
)

// The kinds of Berth's own that the cache keeps for VPC ports.
var (
	VPCs    = watched.Of(&v1alpha1.VPC{}, &v1alpha1.VPCList{}, nil)
	PodNICs = watched.Of(&v1alpha1.PodNIC{}, &v1alpha1.PodNICList{}, watched.Trim)
)

// Watches returns the kinds that the cache must keep for Setup.
func Watches() []*watched.Kind {
	return []*watched.Kind{watched.Nodes, watched.Namespaces, watched.Pods, PodNICs, VPCs}
}

// The fields by which the cache finds objects.
const (
	byPod    = "pod"    // PodNICs by the names of the pods that they are for, or that have them
	byNode   = "node"   // PodNICs by status.nodeName
	byUID    = "uid"    // PodNICs
	byPort   = "port"   // PodNICs by status.portID
	byObject = "object" // pods by the PodNICs that their annotation names

	// ByVPC finds PodNICs by spec.vpc.
	ByVPC = "vpc"
)

// Index has the cache find objects by the fields that this package and package providers read them
// by. It is called once for a manager, before it starts.
func Index(ctx context.Context, ix client.FieldIndexer) error {
	return watched.Index(ctx, ix,
		watched.By(byPod, podsOf),
		watched.ByOne(byNode, func(o *v1alpha1.PodNIC) string { return o.Status.NodeName }),
		watched.ByOne(ByVPC, func(o *v1alpha1.PodNIC) string { return o.Spec.VPC }),
		watched.ByOne(byPort, func(o *v1alpha1.PodNIC) string { return o.Status.PortID }),
		watched.ByOne(byUID, func(o *v1alpha1.PodNIC) string { return string(o.UID) }),
		watched.By(byObject, namedObjects),
	)
}

// NICsOf returns the PodNICs of a pod, read from a cache with Index. The caller must not change them.
func NICsOf(ctx context.Context, r client.Reader, pod client.ObjectKey) ([]v1alpha1.PodNIC, error) {
	list, err := objects.List[v1alpha1.PodNICList](ctx, r, client.InNamespace(pod.Namespace), client.MatchingFields{byPod: pod.Name})
	if err != nil {
		return nil, fmt.Errorf("PodNICs of pod %s: %w", pod, err)
	}
	return list.Items, nil
}

// podsOf are the names of the pods that a PodNIC is for and that has it.
func podsOf(o *v1alpha1.PodNIC) (names []string) {
	if o.Spec.Pod != nil {
		names = append(names, o.Spec.Pod.Name)
	}
	if has := o.Status.Pod; has != nil && (o.Spec.Pod == nil || has.Name != o.Spec.Pod.Name) {
		names = append(names, has.Name)
	}
	return names
}

// kubeAPI is the Kubernetes API as the controllers use it. Objects that it returns are the cache's
// own: they are not changed.
type kubeAPI struct {
	client client.Client // reads from the cache
	live   client.Reader // reads from the API server
}

// vpc is a VPC, or an empty one if there is none.
func (a *kubeAPI) vpc(ctx context.Context, name string) *v1alpha1.VPC {
	if o, err := objects.Get[v1alpha1.VPC](ctx, a.client, client.ObjectKey{Name: name}, objects.Shared); err == nil && o != nil {
		return o
	}
	return &v1alpha1.VPC{}
}

// ending is an error while a VPC is being deleted: it gets no new NICs.
func (a *kubeAPI) ending(ctx context.Context, vpc string) error {
	if a.vpc(ctx, vpc).DeletionTimestamp != nil {
		return fmt.Errorf("VPC %s is being deleted", vpc)
	}
	return nil
}

func (a *kubeAPI) vpcs(ctx context.Context) (map[string]string, error) {
	list, err := objects.List[v1alpha1.VPCList](ctx, a.client)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for i := range list.Items {
		names[string(list.Items[i].UID)] = list.Items[i].Name
	}
	return names, nil
}

// namespace is the metadata of a namespace, or only its name if there is none.
func (a *kubeAPI) namespace(ctx context.Context, name string) *metav1.PartialObjectMetadata {
	ns := watched.Namespace(name)
	if err := a.client.Get(ctx, client.ObjectKey{Name: name}, ns); err != nil {
		return watched.Namespace(name)
	}
	return ns
}

// namespaceVPC is the VPC that a namespace names for its pods; empty: none.
func (a *kubeAPI) namespaceVPC(ctx context.Context, namespace string) string {
	return a.namespace(ctx, namespace).Annotations[v1alpha1.AnnotationVPC]
}

// node is a Node, or nil if there is none.
func (a *kubeAPI) node(ctx context.Context, name string) (*corev1.Node, error) {
	if name == "" {
		return nil, nil
	}
	return objects.Get[corev1.Node](ctx, a.client, client.ObjectKey{Name: name}, objects.Shared)
}

// isOver asks the API server whether a pod is gone or has ended, as the cache may not have the pod
// yet. Of a pod that lives it returns the object.
func (a *kubeAPI) isOver(ctx context.Context, namespace string, ref v1alpha1.PodReference) (bool, *corev1.Pod, error) {
	p := &corev1.Pod{}
	err := a.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, p)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil, nil
	case err != nil:
		return false, nil, fmt.Errorf("read pod %s/%s to see whether it is over: %w", namespace, ref.Name, err)
	case string(p.UID) != ref.UID || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return true, nil, nil
	}
	return false, p, nil
}

func (a *kubeAPI) podsOfNamespace(ctx context.Context, o client.Object) []client.ObjectKey {
	return objects.Keys(ctx, a.client, &corev1.PodList{}, client.InNamespace(o.GetName()))
}

// nicsOfPod are the keys of the PodNICs that are for a pod, that it has, and that it names.
func (a *kubeAPI) nicsOfPod(ctx context.Context, o client.Object) []client.ObjectKey {
	keys := a.nicKeys(ctx, client.InNamespace(o.GetNamespace()), client.MatchingFields{byPod: o.GetName()})
	for _, name := range namedObjects(o.(*corev1.Pod)) {
		keys = append(keys, client.ObjectKey{Namespace: o.GetNamespace(), Name: name})
	}
	return keys
}

// nicsOfNamespace are the keys of all PodNICs of a namespace, whose labels decide what they may have.
func (a *kubeAPI) nicsOfNamespace(ctx context.Context, o client.Object) []client.ObjectKey {
	return a.nicKeys(ctx, client.InNamespace(o.GetName()))
}

// nicKeys are the keys of the PodNICs that options select; none while the cache cannot be read.
func (a *kubeAPI) nicKeys(ctx context.Context, of ...client.ListOption) []client.ObjectKey {
	return objects.Keys(ctx, a.client, &v1alpha1.PodNICList{}, of...)
}

// podKeys are the keys of the pods that a PodNIC is for or that has it.
func podKeys(_ context.Context, o client.Object) (keys []client.ObjectKey) {
	for _, name := range podsOf(o.(*v1alpha1.PodNIC)) {
		keys = append(keys, client.ObjectKey{Namespace: o.GetNamespace(), Name: name})
	}
	return keys
}
