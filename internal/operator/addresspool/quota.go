package addresspool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
)

// A node gets no more of a pool than the pods that are bound to it can use. A token that was
// stolen from one node then takes neither a pool that no pod of the node may use, nor
// all of a pool that some may use.

const (
	// maxOpen is how many requests of a node for one pool are answered at
	// once. The daemon makes no more (package source/pool, maxOutstanding).
	maxOpen = 8
	// maxKept is how many open requests of a node are kept at all.
	maxKept = 256

	// A request that was refused because the node's pods do not need the block is
	// reconciled again after recheckFirst, as pods are not watched. The wait doubles up to
	// recheckLast.
	recheckFirst = 3 * time.Second
	recheckLast  = 20 * time.Second
)

// share is what a node's quota of a pool depends on.
type share struct {
	size    int64 // addresses of a block
	pods    int   // bound to the node whose addresses are of this pool
	maxPods int   // of the node
	limit   int   // spec.maxBlocksPerNode; 0: none
	open    bool  // it is the pool of pods that choose none: each node keeps a block of it
}

// blocks is how many blocks the node may have. Each pod has an address and may have another
// one that cools, and one block more is kept in reserve.
func (s share) blocks() int {
	pods := min(s.pods, s.maxPods)
	if pods == 0 && !s.open {
		return 0
	}
	n := int((2*int64(pods)+s.size-1)/s.size) + 1
	if s.limit > 0 {
		n = min(n, s.limit)
	}
	return n
}

// possession is what a node has of a pool.
type possession struct {
	live     int // blocks that give addresses, those that are being made included
	draining int // blocks that are being deleted, of which pods may still have addresses
}

// refuse tells why the node gets no further block; nil: it gets one. Draining blocks do not
// count, so that a node can replace them, but only up to as many again: a node that drains
// every block it gets cannot get the whole pool.
func (s share) refuse(node, pool string, have possession) *refusal {
	all := have.live + have.draining
	switch n := s.blocks(); {
	case n == 0:
		return &refusal{v1alpha1.ReasonNoPods, fmt.Sprintf("node %s has no pod that gets its address from pool %s: neither its namespace's annotation %s names it, nor its own with spec.podNamespaces listing the namespace",
			node, pool, v1alpha1.AnnotationPool)}
	case s.limit > 0 && all >= s.limit:
		return &refusal{v1alpha1.ReasonNodeQuota, fmt.Sprintf("node %s has %d blocks of pool %s, and spec.maxBlocksPerNode is %d: raise it, or move pods to other nodes", node, all, pool, s.limit)}
	case have.live >= n || all >= 2*n:
		return &refusal{v1alpha1.ReasonNodeQuota, fmt.Sprintf("node %s has %d blocks of pool %s, %d of them draining, and %d are enough for its %d pods of that pool (at most %d count): an address of an ended pod can be used again once it has cooled",
			node, all, pool, have.draining, n, s.pods, s.maxPods)}
	}
	return nil
}

// tooMany refuses a request that is behind others of its node, and reports whether
// it is not even kept.
func tooMany(r *v1alpha1.BlockRequest, ahead, aheadOfPool int) (why *refusal, drop bool) {
	if ahead < maxKept && aheadOfPool < maxOpen {
		return nil, false
	}
	return &refusal{v1alpha1.ReasonTooManyRequests, fmt.Sprintf("node %s has %d older requests for pool %s without an answer, and %d at a time are looked at", r.Spec.NodeName, aheadOfPool, r.Spec.PoolName, maxOpen)},
		ahead >= maxKept
}

// precedes reports whether x comes before y among the requests of a node.
func precedes(x, y *v1alpha1.BlockRequest) bool {
	return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name)) < 0
}

// reservation is a block that the cache may not have yet: made, or being made, for a node.
type reservation struct {
	node, pool string
	since      time.Time
}

// refusedRequest is one that gets no block because of what its node has.
type refusedRequest struct {
	uid        types.UID
	node, pool string
	since      time.Time
}

// quotas counts the blocks that nodes got a moment ago, which the cache may not have yet, and
// remembers which requests were refused. It does no I/O.
type quotas struct {
	mu      sync.Mutex                // guards all below
	making  map[requestID]reservation // by request
	made    map[string]reservation    // by block
	refused map[string]refusedRequest // by the request's name
}

// requestID tells a request from an earlier one of its name.
type requestID struct {
	name string
	uid  types.UID
}

func idOf(r *v1alpha1.BlockRequest) requestID { return requestID{r.Name, r.UID} }

func newQuotas() *quotas {
	return &quotas{making: map[requestID]reservation{}, made: map[string]reservation{}, refused: map[string]refusedRequest{}}
}

// reserve counts one more block for a request, until cancel or confirm, or tells why not.
// Cached lists the node's blocks of the pool. It is called under the lock, so that no block is
// counted twice or not at all.
func (q *quotas) reserve(r *v1alpha1.BlockRequest, s share, now time.Time, cached func() ([]v1alpha1.AddressBlock, error)) (*refusal, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	blocks, err := cached()
	if err != nil {
		return nil, err
	}
	why := s.refuse(r.Spec.NodeName, r.Spec.PoolName, q.possession(r, blocks))
	if why == nil {
		q.making[idOf(r)] = reservation{r.Spec.NodeName, r.Spec.PoolName, now}
	}
	return why, nil
}

// possession counts what a request's node has of its pool, without the request itself. q.mu
// is held.
func (q *quotas) possession(r *v1alpha1.BlockRequest, blocks []v1alpha1.AddressBlock) (have possession) {
	cached := map[string]bool{}
	for i := range blocks {
		b := &blocks[i]
		cached[b.Name] = true
		switch {
		case b.PoolName != r.Spec.PoolName:
		case b.DeletionTimestamp != nil:
			have.draining++
		default:
			have.live++
		}
	}
	for name, c := range q.made {
		if c.node == r.Spec.NodeName && c.pool == r.Spec.PoolName && !cached[name] {
			have.live++
		}
	}
	for id, c := range q.making {
		if c.node == r.Spec.NodeName && c.pool == r.Spec.PoolName && id != idOf(r) {
			have.live++
		}
	}
	return have
}

// cancel ends a reservation without a block.
func (q *quotas) cancel(r *v1alpha1.BlockRequest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.making, idOf(r))
}

// confirm ends a reservation with a block.
func (q *quotas) confirm(r *v1alpha1.BlockRequest, block string, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.making, idOf(r))
	q.made[block] = reservation{r.Spec.NodeName, r.Spec.PoolName, now}
}

// inherit counts a block that the previous leader made.
func (q *quotas) inherit(b *v1alpha1.AddressBlock, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.made[b.Name] = reservation{b.NodeName, b.PoolName, now}
}

// observe takes that the cache has, or had, a block.
func (q *quotas) observe(block string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.made, block)
}

// refuse remembers that a request was refused, and returns when to reconcile it again: the
// longer it has been refused, the later.
func (q *quotas) refuse(r *v1alpha1.BlockRequest, now time.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	c, ok := q.refused[r.Name]
	if !ok || c.uid != r.UID {
		c = refusedRequest{r.UID, r.Spec.NodeName, r.Spec.PoolName, now}
		q.refused[r.Name] = c
	}
	return min(max(now.Sub(c.since), recheckFirst), recheckLast)
}

// forget drops the refusal of a request that was admitted, answered or is gone, and the
// reservations of its name, except that of the UID keep.
func (q *quotas) forget(name string, keep types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.refused, name)
	maps.DeleteFunc(q.making, func(id requestID, _ reservation) bool { return id.name == name && id.uid != keep })
}

// refusedFor lists the refused requests whose node and pool is selects.
func (q *quotas) refusedFor(is func(node, pool string) bool) (names []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(q.refused)) {
		if c := q.refused[name]; is(c.node, c.pool) {
			names = append(names, name)
		}
	}
	return names
}

// expire drops the reservations from before a moment: the cache must have those blocks by now.
func (q *quotas) expire(before time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	maps.DeleteFunc(q.made, func(_ string, c reservation) bool { return c.since.Before(before) })
	maps.DeleteFunc(q.making, func(_ requestID, c reservation) bool { return c.since.Before(before) })
}
