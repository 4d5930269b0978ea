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
	maxPods int // of a node that count; 0: nodes get what they ask for
}

// admit tells why a request gets no block because of what its node has; drop: it is not even
// kept. Without a refusal the quota counts a block for it, until it is canceled or confirmed.
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
		return nil, false, err // of a pool that does not exist, the allocator has the refusal
	}
	s := share{size: int64(1) << min(max(blockSizeBits(p), 0), 16), open: p.Name == v1alpha1.DefaultPool}
	if p.Spec.MaxBlocksPerNode != nil {
		s.limit = int(*p.Spec.MaxBlocksPerNode)
	}
	if s.maxPods, err = a.maxPodsOf(ctx, r.Spec.NodeName); err != nil {
		return nil, false, err
	}
	blocks := func() ([]v1alpha1.AddressBlock, error) { return BlocksOf(ctx, a.api.cached, r.Spec.NodeName) }
	// The first block of a node that starts does not depend on its pods: all nodes may ask
	// for theirs at once.
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

// maxPodsOf is how many pods a node can have: what the kubelet says, which berthd's token cannot
// change, up to the operator's setting.
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

// podsOf counts the addresses of a pool that the pods of a node may have. Ended pods count until
// they are deleted, since their addresses may be cooling. It reads the pods' metadata from the
// API server, because a pod is bound before its node asks for a block. API servers answer that
// from memory, by the index that kubelets use.
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
			n++ // the cache does not have a namespace that was created a moment ago
			continue
		}
		n += addresses(p, o.Namespace, namespace.Annotations[v1alpha1.AnnotationPool], o.Annotations)
	}
	return n, nil
}

// addresses is how many addresses a pod may get from a pool. The pool of a further network is in
// its configuration, which the operator does not read: such an address counts for every pool
// that it may be of.
func addresses(p *v1alpha1.AddressPool, namespace, ofNamespace string, ofPod map[string]string) (n int) {
	if uses(p, namespace, ofNamespace, ofPod[v1alpha1.AnnotationPool]) {
		n = 1
	}
	if uses(p, namespace, ofNamespace, p.Name) {
		n += furtherNetworks(ofPod[annotationNetworks])
	}
	return n
}

// uses reports whether a pod gets its address from a pool, by the rules of the node's daemon
// (package source/pool).
func uses(p *v1alpha1.AddressPool, namespace, ofNamespace, ofPod string) bool {
	given := cmp.Or(ofNamespace, v1alpha1.DefaultPool)
	if ofPod == "" || ofPod == given {
		return given == p.Name
	}
	return ofPod == p.Name && slices.Contains(p.Spec.PodNamespaces, namespace)
}

const (
	// annotationNetworks lists the further networks of a pod, as
	// Multus and others read it (Kubernetes Network Custom Resource Definition
	// De-facto Standard, version 1.3, section 3.1): names separated by commas, or a
	// JSON list of objects.
	annotationNetworks = "k8s.v1.cni.cncf.io/networks"
	// maxFurtherNetworks is how many of a pod's further networks count, so that the
	// annotation of one pod does not get its node a whole pool.
	maxFurtherNetworks = 8
)

// furtherNetworks counts what annotationNetworks lists.
func furtherNetworks(list string) int {
	if list == "" {
		return 0
	}
	n := strings.Count(list, ",") + 1
	if strings.HasPrefix(strings.TrimSpace(list), "[") {
		var objects []json.RawMessage
		if json.Unmarshal([]byte(list), &objects) != nil {
			return 0 // Multus refuses the pod
		}
		n = len(objects)
	}
	return min(n, maxFurtherNetworks)
}
