package addresspool

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/watched"
)

// admission decides whether a node may have another block of a pool: a node gets no more than
// its pods can use.
type admission struct {
	api     *api
	quotas  *quotas
	maxPods int // maximum number of pods counted per node; 0: no quotas
}

// admit returns the reason if the node's quota forbids another block; drop means that the
// request is to be deleted. An admitted request is counted until it is canceled or confirmed.
func (a *admission) admit(ctx context.Context, r *v1alpha1.BlockRequest) (why *refusal, drop bool, err error) {
	if a.maxPods <= 0 {
		return nil, false, nil
	}
	requests, err := a.api.requestsOf(ctx, r.Spec.NodeName)
	if err != nil {
		return nil, false, err
	}
	ahead, ofPool := 0, 0
	for i := range requests {
		o := &requests[i]
		if !precedes(o, r) || o.DeletionTimestamp != nil || meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionComplete) {
			continue
		}
		ahead++
		if o.Spec.PoolName == r.Spec.PoolName {
			ofPool++
		}
	}
	if why, drop := tooMany(r, ahead, ofPool); why != nil {
		return why, drop, nil
	}
	p, err := objects.Get[v1alpha1.AddressPool](ctx, a.api.cached, client.ObjectKey{Name: r.Spec.PoolName}, objects.Shared)
	if err != nil || p == nil {
		return nil, false, err // if the pool does not exist, the allocator refuses the request
	}
	s := share{size: int64(1) << min(max(blockSizeBits(p), 0), 16), open: p.Name == v1alpha1.DefaultPool}
	if p.Spec.MaxBlocksPerNode != nil {
		s.limit = int(*p.Spec.MaxBlocksPerNode)
	}
	if s.maxPods, err = a.maxPodsOf(ctx, r.Spec.NodeName); err != nil {
		return nil, false, err
	}
	blocks := func() ([]v1alpha1.AddressBlock, error) { return BlocksOf(ctx, a.api.cached, r.Spec.NodeName) }
	// The first block of a starting node does not depend on its pods. All nodes may request
	// theirs at the same time, so the pods are not listed for it.
	if s.open {
		if why, err = a.quotas.reserve(r, s, a.api.clock.Now(), blocks); why == nil || err != nil {
			return nil, false, err
		}
	}
	if s.pods, err = a.podsOf(ctx, r.Spec.NodeName, p); err != nil {
		return nil, false, err
	}
	why, err = a.quotas.reserve(r, s, a.api.clock.Now(), blocks)
	return why, false, err
}

// maxPodsOf returns how many pods a node can have: the kubelet's figure, which berthd's token
// cannot change, limited by the operator's setting.
func (a *admission) maxPodsOf(ctx context.Context, node string) (int, error) {
	n, err := objects.Get[corev1.Node](ctx, a.api.cached, client.ObjectKey{Name: node}, objects.Shared)
	if err != nil || n == nil {
		return a.maxPods, err
	}
	if pods := n.Status.Allocatable.Pods().Value(); pods > 0 {
		return int(min(pods, int64(a.maxPods))), nil
	}
	return a.maxPods, nil
}

// podsOf counts the addresses of a pool that the pods of a node may use. Ended pods count until
// they are deleted, since their addresses may be cooling down. It reads pod metadata from the
// API server, because a pod is bound before its node requests a block. API servers answer from
// memory, using the index that serves kubelets.
func (a *admission) podsOf(ctx context.Context, node string, p *v1alpha1.AddressPool) (n int, err error) {
	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	sel := client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", node), fields.OneTermEqualSelector("spec.hostNetwork", "false"),
	)}
	if err := a.api.live.List(ctx, pods, sel); err != nil {
		return 0, fmt.Errorf("list pods of %s: %w", node, err)
	}
	for i := range pods.Items {
		o := &pods.Items[i]
		namespace := watched.Namespace(o.Namespace)
		err := a.api.cached.Get(ctx, client.ObjectKeyFromObject(namespace), namespace)
		if client.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("read Namespace %s: %w", o.Namespace, err)
		}
		if err != nil {
			n++ // the cache may not have a newly created namespace yet
			continue
		}
		n += addresses(p, o.Namespace, namespace.Annotations[v1alpha1.AnnotationPool], o.Annotations)
	}
	return n, nil
}

// addresses returns how many addresses of a pool a pod may use. The pool of an additional network
// is set in the network's configuration, which the operator does not read: such an address counts
// towards every pool that it could come from.
func addresses(p *v1alpha1.AddressPool, namespace, ofNamespace string, ofPod map[string]string) (n int) {
	if uses(p, namespace, ofNamespace, ofPod[v1alpha1.AnnotationPool]) {
		n = 1
	}
	if uses(p, namespace, ofNamespace, p.Name) {
		n += furtherNetworks(ofPod[annotationNetworks])
	}
	return n
}

// uses reports whether a pod gets its address from a pool, by the same rules as the node's daemon
// (package source/pool).
func uses(p *v1alpha1.AddressPool, namespace, ofNamespace, ofPod string) bool {
	given := cmp.Or(ofNamespace, v1alpha1.DefaultPool)
	if ofPod == "" || ofPod == given {
		return given == p.Name
	}
	return ofPod == p.Name && slices.Contains(p.Spec.PodNamespaces, namespace)
}

const (
	// annotationNetworks lists the additional networks of a pod, as read by Multus and others
	// (Kubernetes Network Custom Resource Definition De-facto Standard, version 1.3, section 3.1):
	// comma-separated names or a JSON list of objects.
	annotationNetworks = "k8s.v1.cni.cncf.io/networks"
	// maxFurtherNetworks limits how many additional networks of a pod count, so that one pod's
	// annotation cannot get its node a whole pool.
	maxFurtherNetworks = 8
)

// furtherNetworks counts the networks in the value of annotationNetworks.
func furtherNetworks(list string) int {
	if list == "" {
		return 0
	}
	n := strings.Count(list, ",") + 1
	if strings.HasPrefix(strings.TrimSpace(list), "[") {
		var objects []json.RawMessage
		if json.Unmarshal([]byte(list), &objects) != nil {
			return 0 // Multus rejects the pod
		}
		n = len(objects)
	}
	return min(n, maxFurtherNetworks)
}
