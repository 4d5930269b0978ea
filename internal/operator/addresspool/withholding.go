package addresspool

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
	"github.com/berthnet/berth/internal/operator/objects"
)

// withholding withholds the addresses of Nodes and Services, and those that pools reserve, from pods: it tracks these addresses
// and records in each block which of the block's addresses are withheld.
type withholding struct {
	api       *api
	queues    *queues
	allocator *allocator
	occupied  *occupied
}

// observeNode updates the addresses of a node from the cache, and returns when to check again. A
// missing Node keeps its addresses while it has blocks: its machine may still be running.
func (w *withholding) observeNode(ctx context.Context, name string) (time.Duration, error) {
	w.occupied.mu.Lock()
	changed, wait, err := w.readNode(ctx, name)
	w.occupied.mu.Unlock()
	for _, a := range changed {
		for _, s := range w.allocator.blocksWith(a) {
			w.queues.blocks.Add(blockName(s.pool, s.index))
			w.queues.pools.Add(s.pool)
		}
	}
	return wait, err
}

// readNode is the part of observeNode done under the lock, so that no older state overwrites a newer
// one. It reads only the cache.
func (w *withholding) readNode(ctx context.Context, name string) (changed []netip.Addr, wait time.Duration, err error) {
	n, err := objects.Get[corev1.Node](ctx, w.api.cached, client.ObjectKey{Name: name}, objects.Shared)
	if err != nil {
		return nil, 0, err
	}
	had, known := w.occupied.nodes[name]
	var addresses []netip.Addr
	if n != nil {
		addresses = nodeAddresses(n)
	} else {
		if !known {
			return nil, 0, nil
		}
		if blocks, err := BlocksOf(ctx, w.api.cached, name); err != nil || len(blocks) > 0 {
			return nil, 0, err
		}
		defer delete(w.occupied.nodes, name)
	}
	if slices.Equal(had.addresses, addresses) {
		return nil, 0, nil
	}
	now := w.api.clock.Now()
	if wait := w.occupied.wait(name, addresses, now); wait > 0 {
		return nil, wait, nil
	}
	return w.occupied.set(name, addresses, now), 0, nil
}

// observePool updates the ranges that a pool reserves. Blocks that were skipped because of them are reconsidered.
func (w *withholding) observePool(ctx context.Context, name string, reserved []netip.Prefix) error {
	if !w.occupied.reserve(name, reserved) {
		return nil // each new block causes this call, so the pool's other blocks are not listed
	}
	blocks, err := objects.List[v1alpha1.AddressBlockList](ctx, w.api.cached, client.MatchingFields{byPool: name})
	if err != nil {
		return err // every block is checked by the next sweep
	}
	for i := range blocks.Items {
		w.queues.blocks.Add(blocks.Items[i].Name)
	}
	w.recheckUnusable()
	return nil
}

// recheckUnusable offers skipped blocks that have an address for a pod now.
func (w *withholding) recheckUnusable() {
	w.queues.requests.Add(w.allocator.recheckUnusable(func(pool string, b block.Block) bool {
		return hasRoom(b, w.occupied.withheldOf(pool, b))
	})...)
}

// readAll reads the addresses of all Nodes and Services, and those that pools reserve, before the first block is allocated.
func (w *withholding) readAll(ctx context.Context) error {
	pools, err := objects.List[v1alpha1.AddressPoolList](ctx, w.api.cached)
	if err != nil {
		return err
	}
	for i := range pools.Items {
		w.occupied.reserve(pools.Items[i].Name, reservedRanges(&pools.Items[i]))
	}
	nodes, err := objects.List[corev1.NodeList](ctx, w.api.cached)
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		_, failed := w.observeNode(ctx, nodes.Items[i].Name)
		err = errors.Join(err, failed)
	}
	w.readServices(ctx)
	return err
}

// readServices reads the ranges of Services. If that fails, it keeps the ranges read before. If it
// returns false, no subnets must be accepted. API servers before Kubernetes 1.33 have no
// ServiceCIDRs: no ranges are known then.
func (w *withholding) readServices(ctx context.Context) (ok bool) {
	list, err := objects.List[networkingv1.ServiceCIDRList](ctx, w.api.live)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		list, err = &networkingv1.ServiceCIDRList{}, nil
	}
	forbidden := apierrors.IsForbidden(err)
	w.occupied.mu.Lock()
	defer w.occupied.mu.Unlock()
	again := w.occupied.unread
	w.occupied.unread = err != nil
	switch {
	case err == nil:
		w.occupied.ranges = serviceRanges(list)
	case again: // already logged
	case forbidden:
		w.api.log.Warn("ServiceCIDRs cannot be read, so pools may overlap them: apply the operator's role", "err", err)
	default:
		w.api.log.Warn("ServiceCIDRs cannot be read: no subnet of a pool is accepted until they can", "err", err)
	}
	return err == nil || forbidden
}

// restore takes over, when this operator becomes leader, state recorded only in blocks: the
// addresses of missing Nodes that have blocks, since their machines may be running, and the ranges
// of Services if they cannot be read.
func (w *withholding) restore(others []ownedRange, hasBlocks map[string]bool) {
	missing := map[string][]netip.Addr{}
	var ranges []ownedRange
	w.occupied.mu.Lock()
	defer w.occupied.mu.Unlock()
	for _, o := range others {
		node, isNode := strings.CutPrefix(o.other, ownerNode)
		_, known := w.occupied.nodes[node]
		switch {
		case strings.HasPrefix(o.other, ownerServices):
			ranges = append(ranges, o)
		case isNode && !known && hasBlocks[node]:
			missing[node] = append(missing[node], o.Addr())
		}
	}
	if w.occupied.unread && w.occupied.ranges == nil {
		w.occupied.ranges = ranges
	}
	for node, addresses := range missing {
		w.occupied.set(node, addresses, w.api.clock.Now())
		w.queues.nodes.Add(node) // it may have returned, or lost its blocks, in the meantime
	}
}

// reconcile records in a block which of its addresses are withheld.
func (w *withholding) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	b, err := objects.Get[v1alpha1.AddressBlock](ctx, w.api.cached, q.NamespacedName)
	if err != nil || b == nil || b.DeletionTimestamp != nil {
		return reconcile.Result{}, err
	}
	others := w.occupied.withheldOf(b.PoolName, piece(b))
	if slices.Equal(others, b.Withheld) {
		return reconcile.Result{}, nil
	}
	before := b.DeepCopy()
	b.Withheld = others
	if err := objects.Patch(ctx, w.api.cached, before, b); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	w.api.log.Info("withheld addresses of a block changed", "block", b.Name, "node", b.NodeName, "before", before.Withheld, "now", others)
	return reconcile.Result{}, nil
}
