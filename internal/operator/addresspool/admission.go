package addresspool

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
)

// recheckFirst is how soon a request is reconciled again that was refused because
// its node's pods do not need the block: pods are not watched. The wait doubles up
// to recheckLast, for requests that stay refused.
const (
	recheckFirst = 3 * time.Second
	recheckLast  = 20 * time.Second
)

// admit tells why a request is not to have a block, besides what the pool has to
// say; drop: it is not to be kept. Without a refusal the quota has one block more
// for it, until it is released or got.
func (c *Controller) admit(ctx context.Context, r *v1alpha1.BlockRequest) (why *refusal, drop bool, err error) {
	if c.o.MaxPods <= 0 || c.book.begun(r) {
		return nil, false, nil
	}
	requests := &v1alpha1.BlockRequestList{}
	of := client.MatchingFields{byNode: r.Spec.NodeName}
	if err := c.client.List(ctx, requests, of, client.UnsafeDisableDeepCopy); err != nil {
		return nil, false, fmt.Errorf("list requests of %s: %w", r.Spec.NodeName, err)
	}
	ahead, ofPool := 0, 0
	for i := range requests.Items {
		o := &requests.Items[i]
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
	p := &v1alpha1.AddressPool{}
	err = c.client.Get(ctx, client.ObjectKey{Name: r.Spec.PoolName}, p, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return nil, false, nil // the book says so
	}
	if err != nil {
		return nil, false, fmt.Errorf("read AddressPool %s from the cache: %w", r.Spec.PoolName, err)
	}
	s := share{size: int64(1) << min(max(blockSizeBits(p), 0), 16), open: p.Name == v1alpha1.DefaultPool}
	if p.Spec.MaxBlocksPerNode != nil {
		s.limit = int(*p.Spec.MaxBlocksPerNode)
	}
	if s.maxPods, err = c.maxPods(ctx, r.Spec.NodeName); err != nil {
		return nil, false, err
	}
	cached := func() ([]v1alpha1.AddressBlock, error) {
		blocks := &v1alpha1.AddressBlockList{}
		err := c.client.List(ctx, blocks, of, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("list blocks of %s: %w", r.Spec.NodeName, err)
		}
		return blocks.Items, nil
	}
	// The first block of a node that starts, which all nodes may ask for at once,
	// does not depend on its pods.
	if s.open {
		if why, err = c.quotas.admit(r, s, c.now(), cached); why == nil || err != nil {
			return nil, false, err
		}
	}
	if s.pods, err = c.podsOf(ctx, r.Spec.NodeName, p); err != nil {
		return nil, false, err
	}
	why, err = c.quotas.admit(r, s, c.now(), cached)
	return why, false, err
}

// maxPods is how many pods a node can have: the kubelet's word, which berthd's
// token cannot change, up to the operator's.
func (c *Controller) maxPods(ctx context.Context, node string) (int, error) {
	n := &corev1.Node{}
	err := c.client.Get(ctx, client.ObjectKey{Name: node}, n, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("read Node %s from the cache: %w", node, err)
	}
	if pods := n.Status.Allocatable.Pods().Value(); pods > 0 {
		return int(min(pods, int64(c.o.MaxPods))), nil
	}
	return c.o.MaxPods, nil
}

// podsOf counts the pods that are bound to a node and get their addresses from a
// pool, a pod as often as it may have one. Those that ended count while they are there: their addresses may cool. It
// asks past the cache, since a pod is bound before its node asks for a block; of
// pods it reads the metadata alone. API servers answer it from memory, by the
// index that kubelets use.
func (c *Controller) podsOf(ctx context.Context, node string, p *v1alpha1.AddressPool) (n int, err error) {
	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	sel := client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", node), fields.OneTermEqualSelector("spec.hostNetwork", "false"),
	)}
	if err := c.live.List(ctx, pods, sel); err != nil {
		return 0, fmt.Errorf("list pods of %s: %w", node, err)
	}
	for i := range pods.Items {
		o := &pods.Items[i]
		namespace := watched.Namespace(o.Namespace)
		err := c.client.Get(ctx, client.ObjectKeyFromObject(namespace), namespace)
		if client.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("read Namespace %s from the cache: %w", o.Namespace, err)
		}
		if err != nil {
			n++ // the cache does not have a namespace that was made a moment ago
			continue
		}
		n += addresses(p, o.Namespace, namespace.Annotations[v1alpha1.AnnotationPool], o.Annotations)
	}
	return n, nil
}

// addresses is how many addresses a pod may get from a pool. Of which pools those of
// its further networks are, their configurations say, which the operator does not
// read: each counts for every pool that it may be of.
func addresses(p *v1alpha1.AddressPool, namespace, ofNamespace string, ofPod map[string]string) (n int) {
	if uses(p, namespace, ofNamespace, ofPod[v1alpha1.AnnotationPool]) {
		n = 1
	}
	if uses(p, namespace, ofNamespace, p.Name) {
		n += furtherNetworks(ofPod[annotationNetworks])
	}
	return n
}

// uses tells whether a pod gets its address from a pool: as the node's daemon
// chooses (package source/pool).
func uses(p *v1alpha1.AddressPool, namespace, ofNamespace, ofPod string) bool {
	given := cmp.Or(ofNamespace, v1alpha1.DefaultPool)
	if ofPod == "" || ofPod == given {
		return given == p.Name
	}
	return ofPod == p.Name && slices.Contains(p.Spec.PodNamespaces, namespace)
}

const (
	// annotationNetworks lists the networks that a pod has besides the cluster's, as
	// Multus and others read it (Kubernetes Network Custom Resource Definition
	// De-facto Standard, version 1.3, section 3.1): names separated by commas, or a
	// JSON list of objects.
	annotationNetworks = "k8s.v1.cni.cncf.io/networks"
	// maxFurtherNetworks is how many of a pod's count: whoever writes a pod's
	// annotation does not get the node all of a pool by it.
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

// namespaces reconciles the refused requests again when the annotations of a
// namespace change.
func (c *Controller) namespaces() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) (out []reconcile.Request) {
		for _, name := range c.quotas.waiting(func(string, string) bool { return true }) {
			out = append(out, queue.Request(name))
		}
		return out
	})
}

// refuse tells a request, and whoever looks after the pool, why it gets no block.
func (c *Controller) refuse(ctx context.Context, r *v1alpha1.BlockRequest, why *refusal) error {
	before := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionFailed)
	if before == nil || before.Reason != why.reason {
		c.o.RequestRefused(why.reason)
		c.recordRefusal(ctx, r, why)
	}
	return c.fail(ctx, r, why)
}

// recordRefusal makes an event of a refusal. Those of one node and reason are one,
// however many requests it makes.
func (c *Controller) recordRefusal(ctx context.Context, r *v1alpha1.BlockRequest, why *refusal) {
	p := &v1alpha1.AddressPool{}
	if c.client.Get(ctx, client.ObjectKey{Name: r.Spec.PoolName}, p) == nil {
		c.events.Eventf(p, nil, corev1.EventTypeWarning, why.reason, "Refuse", "node %s gets no more blocks; its BlockRequests say why", r.Spec.NodeName)
	}
}

// drop deletes a request that is one too many.
func (c *Controller) drop(ctx context.Context, r *v1alpha1.BlockRequest) error {
	c.o.RequestRefused(v1alpha1.ReasonTooManyRequests)
	c.o.Logger.Debug("a node has too many requests; the youngest are deleted", "node", r.Spec.NodeName, "request", r.Name, "kept", maxKept)
	if err := c.delete(ctx, r); err != nil {
		return fmt.Errorf("delete BlockRequest %s: %w", r.Name, err)
	}
	return nil
}
