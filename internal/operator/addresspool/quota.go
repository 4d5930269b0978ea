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

// A node gets no more of a pool than the pods that are bound to it can use: a
// token that was stolen from one node takes neither a pool that no pod of the
// node may use, nor all of one that some may.

const (
	// maxOpen is how many requests of a node for one pool are answered at
	// once. The daemon makes no more (package source/pool, maxOutstanding).
	maxOpen = 8
	// maxKept is how many open requests of a node are kept at all.
	maxKept = 256
)

// share is what decides how much of a pool a node may have.
type share struct {
	size    int64 // addresses of a block
	pods    int   // bound to the node whose addresses are of this pool
	maxPods int   // of the node
	limit   int   // spec.maxBlocksPerNode; 0: none
	open    bool  // it is the pool of pods that choose none, of which each node keeps a block
}

// blocks is how many blocks the node may have: each pod has an address and
// another one of it may cool, and one block is there before it is needed.
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
	draining int // blocks on their way back, which pods may still have addresses of
}

// refuse tells why the node gets no more blocks; nil if it does. Blocks on their
// way back do not count, so that a node can go on from others, up to as many
// again: a node that drains every block it gets cannot get the whole pool.
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

// tooMany refuses a request that is behind others of its node, and tells whether
// it is not even kept.
func tooMany(r *v1alpha1.BlockRequest, ahead, aheadOfPool int) (why *refusal, drop bool) {
	if ahead < maxKept && aheadOfPool < maxOpen {
		return nil, false
	}
	return &refusal{v1alpha1.ReasonTooManyRequests, fmt.Sprintf("node %s has %d older requests for pool %s without an answer, and %d at a time are looked at", r.Spec.NodeName, aheadOfPool, r.Spec.PoolName, maxOpen)},
		ahead >= maxKept
}

// precedes tells whether x comes before y among the requests of a node.
func precedes(x, y *v1alpha1.BlockRequest) bool {
	return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name)) < 0
}

// reservation is a block that the cache does not have yet: made, or being made,
// for a node.
type reservation struct {
	node, pool string
	since      time.Time
}

// refusedRequest is one that gets no block for its node's sake.
type refusedRequest struct {
	uid        types.UID
	node, pool string
	since      time.Time
}

// quotas are what nodes got a moment ago, which the cache may not have yet, and
// which requests were refused a block. It makes no request: all is quick.
type quotas struct {
	mu      sync.Mutex                // guards all below; memory only
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

// admit lets a request have one more block, to be ended by release or got, or
// says why not. cached lists the node's blocks of the pool; it is called under
// the lock, so that a block is in the one or the other.
func (q *quotas) admit(r *v1alpha1.BlockRequest, s share, now time.Time, cached func() ([]v1alpha1.AddressBlock, error)) (*refusal, error) {
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

// possession counts what a request's node has of its pool, but for the request
// itself. q.mu is held.
func (q *quotas) possession(r *v1alpha1.BlockRequest, blocks []v1alpha1.AddressBlock) (have possession) {
	seen := map[string]bool{}
	for i := range blocks {
		b := &blocks[i]
		seen[b.Name] = true
		switch {
		case b.PoolName != r.Spec.PoolName:
		case b.DeletionTimestamp != nil:
			have.draining++
		default:
			have.live++
		}
	}
	for name, c := range q.made {
		if c.node == r.Spec.NodeName && c.pool == r.Spec.PoolName && !seen[name] {
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

// release ends what admit began, without a block.
func (q *quotas) release(r *v1alpha1.BlockRequest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.making, idOf(r))
}

// got ends what admit began, with a block.
func (q *quotas) got(r *v1alpha1.BlockRequest, block string, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.making, idOf(r))
	q.made[block] = reservation{r.Spec.NodeName, r.Spec.PoolName, now}
}

// left notes a block that the leader before this one made.
func (q *quotas) left(b *v1alpha1.AddressBlock, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.made[b.Name] = reservation{b.NodeName, b.PoolName, now}
}

// seen takes that the cache has, or had, a block.
func (q *quotas) seen(block string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.made, block)
}

// refuse notes that a request was refused, and tells when to look at it again:
// the longer it stands, the later.
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

// end forgets what is noted of a request of a name that was admitted, answered or
// is no more: of any but one with the UID keep what was to be made for it too.
func (q *quotas) end(name string, keep types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.refused, name)
	maps.DeleteFunc(q.making, func(id requestID, _ reservation) bool { return id.name == name && id.uid != keep })
}

// waiting lists the refused requests that is picks.
func (q *quotas) waiting(is func(node, pool string) bool) (names []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(q.refused)) {
		if c := q.refused[name]; is(c.node, c.pool) {
			names = append(names, name)
		}
	}
	return names
}

// age forgets what was noted before a moment, and the cache must have by now.
func (q *quotas) age(before time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	old := func(c reservation) bool { return c.since.Before(before) }
	maps.DeleteFunc(q.made, func(_ string, c reservation) bool { return old(c) })
	maps.DeleteFunc(q.making, func(_ requestID, c reservation) bool { return old(c) })
}
