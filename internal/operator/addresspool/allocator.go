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

// allocator knows which blocks of each pool are allocated, and which requests got a block or
// wait for one. It does no I/O.
type allocator struct {
	mu      sync.Mutex // guards all below
	pools   map[string]*poolBlocks
	pending map[string]*pending // by the request's name
}

// poolBlocks are the blocks of one pool. The allocator's lock guards them.
type poolBlocks struct {
	name        string
	uid         types.UID    // of the pool; empty: it does not exist
	layout      block.Layout // of the subnets that may be cut
	closed      *refusal     // why no block is allocated at all; nil: blocks are
	carver      *block.Carver
	unconfirmed map[int64]time.Time // indexes that are allocated and whose block no watch has shown yet, and since when
	unusable    map[int64]bool      // indexes without a block, since others have all of their addresses
	waiting     []*pending          // the oldest first
	offered     int                 // requests that were offered a free block and have not taken it yet
	making      int                 // blocks that are being made
}

// refusal is why a request gets no block, or a subnet is not accepted.
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

// pool returns a pool, which may be known by its blocks alone. a.mu is held.
func (a *allocator) pool(name string) *poolBlocks {
	p := a.pools[name]
	if p == nil {
		p = &poolBlocks{name: name, carver: block.NewCarver(0), closed: notFound(name), unconfirmed: map[int64]time.Time{}, unusable: map[int64]bool{}}
		a.pools[name] = p
	}
	return p
}

// forgetIfUnused drops a pool that was deleted, once it has neither blocks nor requests. a.mu
// is held.
func (a *allocator) forgetIfUnused(p *poolBlocks) {
	if a.pools[p.name] == p && p.uid == "" && p.allocated() == 0 && len(p.waiting)+p.offered+p.making == 0 {
		delete(a.pools, p.name)
	}
}

// setPool takes a pool as it is now, with the layout of the subnets that may be cut, and why
// no block is allocated, if so. It returns the requests to reconcile again.
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

// removePool forgets a pool that was deleted, but not the blocks that outlived it, and
// returns the requests that wait for it.
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

// setClosed sets why no block is allocated, and returns the requests to reconcile again: all
// that wait if the reason is another one than before.
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

// allocated counts the blocks that exist, or may exist.
func (p *poolBlocks) allocated() int64 { return p.carver.Taken() - int64(len(p.unusable)) }

// free counts the blocks that nobody has.
func (p *poolBlocks) free() int64 { return max(0, p.layout.Blocks()-p.carver.Taken()) }

// offerFree offers the free blocks to the requests that wait longest. A block that was
// offered is kept for its request: later requests do not get it.
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

// observe takes a block that a watch showed.
func (a *allocator) observe(pool string, index int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pool(pool)
	p.carver.Mark(index)
	delete(p.unconfirmed, index)
	delete(p.unusable, index)
}

// observeListed takes a block of a list that was read from the API server at now. The watch
// may or may not have shown it.
func (a *allocator) observeListed(pool string, index int64, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pool(pool)
	before := p.carver.Taken()
	if p.carver.Mark(index); p.carver.Taken() > before {
		p.unconfirmed[index] = now
	}
}

// blocksWith lists the blocks, allocated or not, that have an address.
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

// release takes that a block does not exist any more, and returns the requests that may
// have one now.
func (a *allocator) release(pool string, index int64) (again []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pools[pool]
	if p == nil {
		return nil
	}
	return a.releaseIndex(p, index)
}

// releaseIndex is release. a.mu is held.
func (a *allocator) releaseIndex(p *poolBlocks, index int64) (again []string) {
	p.carver.Free(index)
	delete(p.unconfirmed, index)
	delete(p.unusable, index)
	again = p.offerFree()
	a.forgetIfUnused(p)
	return again
}

// freeUnusable frees the indexes that were passed over because others had their addresses.
func (p *poolBlocks) freeUnusable() {
	for index := range p.unusable {
		p.carver.Free(index)
	}
	clear(p.unusable)
}

// recheckUnusable frees the indexes that were passed over and whose blocks are usable now. It
// returns the requests that may have one.
func (a *allocator) recheckUnusable(usable func(block.Block) bool) (again []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pools {
		for index := range p.unusable {
			if piece, err := p.layout.Block(index); err != nil || usable(piece) {
				again = append(again, a.releaseIndex(p, index)...)
			}
		}
	}
	return again
}

// slot is the index of a block in a pool.
type slot struct {
	pool  string
	index int64
}

// unconfirmedBefore lists the blocks that were allocated before a time and that no watch
// has shown since, except those that are being made.
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

// counts are those of one pool.
type counts struct {
	blocks, addresses v1alpha1.PoolCounts
	next              int64 // the index that is allocated next
	making            int
}

// counts returns those of a pool; zero if it is not known.
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

// times multiplies, up to the largest number that fits.
func times(a, b int64) int64 {
	if b != 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

// Usage is how much of a pool is allocated.
type Usage struct {
	Pool      string
	Blocks    v1alpha1.PoolCounts
	Addresses v1alpha1.PoolCounts
	Waiting   int // requests that failed and wait for a block
}

// usage lists the pools by name.
func (a *allocator) usage() (list []Usage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(a.pools)) {
		p := a.pools[name]
		if p.uid == "" {
			continue // it does not exist
		}
		n := p.counts()
		list = append(list, Usage{Pool: name, Blocks: n.blocks, Addresses: n.addresses, Waiting: len(p.waiting)})
	}
	return list
}
