package addresspool

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
)

// allocator tracks the allocated blocks of each pool, and the requests that got a block or are
// waiting for one. It does no I/O.
type allocator struct {
	mu      sync.Mutex // guards the fields below
	pools   map[string]*poolBlocks
	pending map[string]*pending // by request name
}

// poolBlocks are the blocks of one pool. The allocator's lock guards them.
type poolBlocks struct {
	name        string
	uid         types.UID    // of the pool; empty if the pool does not exist
	layout      block.Layout // of the subnets that may be cut
	closed      *refusal     // why the pool allocates no blocks; nil if it does
	carver      *block.Carver
	unconfirmed map[int64]time.Time // allocation time of indexes whose block no watch has shown yet
	unusable    map[int64]bool      // indexes skipped because all of their addresses are in use elsewhere
	waiting     []*pending          // oldest first
	offered     int                 // requests that were offered a free block and have not taken it yet
	making      int                 // blocks that are being created
}

// refusal is the reason why a request gets no block, or a subnet is not accepted.
type refusal struct{ reason, message string }

func notFound(name string) *refusal {
	return &refusal{v1alpha1.ReasonPoolNotFound, "there is no AddressPool " + name}
}

func exhausted(blocks int64, name string) *refusal {
	return &refusal{v1alpha1.ReasonPoolExhausted, fmt.Sprintf("all %d blocks of pool %s are allocated: append a subnet, or wait until a node returns a block", blocks, name)}
}

func newAllocator() *allocator {
	return &allocator{pools: map[string]*poolBlocks{}, pending: map[string]*pending{}}
}

// pool returns a pool, creating the entry if needed: blocks can arrive before their pool. a.mu is held.
func (a *allocator) pool(name string) *poolBlocks {
	p := a.pools[name]
	if p == nil {
		p = &poolBlocks{name: name, carver: block.NewCarver(0), closed: notFound(name), unconfirmed: map[int64]time.Time{}, unusable: map[int64]bool{}}
		a.pools[name] = p
	}
	return p
}

// forgetIfUnused drops a deleted pool once it has neither blocks nor requests. a.mu is held.
func (a *allocator) forgetIfUnused(p *poolBlocks) {
	if a.pools[p.name] == p && p.uid == "" && p.allocated() == 0 && len(p.waiting)+p.offered+p.making == 0 {
		delete(a.pools, p.name)
	}
}

// setPool updates a pool, the layout of its usable subnets, and the reason why it allocates no
// blocks, if any. It returns the requests to reconcile again.
func (a *allocator) setPool(o *v1alpha1.AddressPool, l block.Layout, closed *refusal) (again []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pool(o.Name)
	if p.uid != o.UID {
		p.uid = o.UID
		p.freeUnusable()
		p.carver.Resume(o.Status.NextIndex)
	}
	p.layout = l
	return p.setClosed(closed)
}

// removePool forgets a deleted pool but keeps the blocks that outlived it. It returns the
// requests that are waiting for the pool.
func (a *allocator) removePool(name string) (again []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pools[name]
	if p == nil || p.uid == "" {
		return nil
	}
	p.uid, p.layout = "", block.Layout{}
	again = p.setClosed(notFound(name))
	a.forgetIfUnused(p)
	return again
}

// setClosed sets why no blocks are allocated. If the reason changed, it returns all waiting
// requests, which are to be reconciled again.
func (p *poolBlocks) setClosed(closed *refusal) (again []string) {
	same := (p.closed == nil) == (closed == nil) && (closed == nil || *p.closed == *closed)
	p.closed = closed
	again = p.offerFree()
	if !same {
		for _, r := range p.waiting {
			again = append(again, r.name)
		}
	}
	return again
}

// allocated counts the blocks that exist or may exist.
func (p *poolBlocks) allocated() int64 { return p.carver.Taken() - int64(len(p.unusable)) }

// free counts the unallocated blocks.
func (p *poolBlocks) free() int64 { return max(0, p.layout.Blocks()-p.carver.Taken()) }

// offerFree offers the free blocks to the requests that have waited longest. An offered block
// is reserved: later requests cannot take it.
func (p *poolBlocks) offerFree() (names []string) {
	for p.closed == nil && len(p.waiting) > 0 && int64(p.offered) < p.free() {
		r := p.waiting[0]
		p.waiting = p.waiting[1:]
		r.place = offered
		p.offered++
		names = append(names, r.name)
	}
	return names
}

// observe records a block that a watch has shown.
func (a *allocator) observe(pool string, index int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pool(pool)
	p.carver.Mark(index)
	delete(p.unconfirmed, index)
	delete(p.unusable, index)
}

// observeListed records a block from a list that was read from the API server at now. The watch
// may not have shown it yet.
func (a *allocator) observeListed(pool string, index int64, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pool(pool)
	before := p.carver.Taken()
	if p.carver.Mark(index); p.carver.Taken() > before {
		p.unconfirmed[index] = now
	}
}

// blocksWith returns the blocks, allocated or not, that contain an address.
func (a *allocator) blocksWith(addr netip.Addr) (list []slot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, p := range a.pools {
		if index, ok := p.layout.Find(addr); ok {
			list = append(list, slot{name, index})
		}
	}
	return list
}

// release frees the index of a block that no longer exists, and returns the requests that may
// get a block now.
func (a *allocator) release(pool string, index int64) (again []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pools[pool]
	if p == nil {
		return nil
	}
	return a.releaseIndex(p, index)
}

// releaseIndex works like release with a.mu held.
func (a *allocator) releaseIndex(p *poolBlocks, index int64) (again []string) {
	p.carver.Free(index)
	delete(p.unconfirmed, index)
	delete(p.unusable, index)
	again = p.offerFree()
	a.forgetIfUnused(p)
	return again
}

// freeUnusable frees the indexes that were skipped because their addresses were in use.
func (p *poolBlocks) freeUnusable() {
	for index := range p.unusable {
		p.carver.Free(index)
	}
	clear(p.unusable)
}

// recheckUnusable frees the skipped indexes whose blocks are usable now. It returns the requests
// that may get one.
func (a *allocator) recheckUnusable(usable func(string, block.Block) bool) (again []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, p := range a.pools {
		for index := range p.unusable {
			if piece, err := p.layout.Block(index); err != nil || usable(name, piece) {
				again = append(again, a.releaseIndex(p, index)...)
			}
		}
	}
	return again
}

// slot identifies a block by its pool and its index.
type slot struct {
	pool  string
	index int64
}

// unconfirmedBefore returns the blocks that were allocated before a given time and not shown by a
// watch since, except blocks whose creation is in flight.
func (a *allocator) unconfirmedBefore(before time.Time) (list []slot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	tried := map[slot]bool{}
	for _, r := range a.pending {
		if r.tried {
			tried[slot{r.pool.name, r.index}] = true
		}
	}
	for name, p := range a.pools {
		for index, since := range p.unconfirmed {
			if s := (slot{name, index}); since.Before(before) && !tried[s] {
				list = append(list, s)
			}
		}
	}
	return list
}

// counts are the counts of one pool.
type counts struct {
	blocks, addresses v1alpha1.PoolCounts
	next              int64 // the index to allocate next
	making            int
}

// counts returns the counts of a pool, or zero if the pool is unknown.
func (a *allocator) counts(pool string) (c counts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pools[pool]
	if p == nil {
		return c
	}
	return p.counts()
}

func (p *poolBlocks) counts() counts {
	total, allocated, free := p.layout.Blocks(), p.allocated(), p.free()
	size := p.layout.BlockAddresses()
	return counts{
		blocks:    v1alpha1.PoolCounts{Total: total, Allocated: allocated, Free: free},
		addresses: v1alpha1.PoolCounts{Total: times(total, size), Allocated: times(allocated, size), Free: times(free, size)},
		next:      p.carver.Next(), making: p.making,
	}
}

// times multiplies and saturates at the maximum.
func times(a, b int64) int64 {
	if b != 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

// Usage describes how much of a pool is allocated.
type Usage struct {
	Pool      string
	Blocks    v1alpha1.PoolCounts
	Addresses v1alpha1.PoolCounts
	Waiting   int // failed requests that are waiting for a block
}

// usage returns the usage of all pools, ordered by name.
func (a *allocator) usage() (list []Usage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(a.pools)) {
		p := a.pools[name]
		if p.uid == "" {
			continue // the pool does not exist
		}
		n := p.counts()
		list = append(list, Usage{Pool: name, Blocks: n.blocks, Addresses: n.addresses, Waiting: len(p.waiting)})
	}
	return list
}
