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

// book is which blocks of each pool are taken, and which requests got or wait
// for one. It makes no request: all of its methods are quick.
type book struct {
	mu      sync.Mutex // guards all below
	pools   map[string]*poolBook
	entries map[string]*entry // by the request's name
}

// poolBook is what the book has of one pool.
type poolBook struct {
	name        string
	uid         types.UID    // of the pool; empty: there is none
	layout      block.Layout // of the subnets that may be cut
	closed      *refusal     // why no block is given at all
	carver      *block.Carver
	unconfirmed map[int64]time.Time // since when an index is taken whose block the watch did not show yet
	useless     map[int64]bool      // taken, since others have all of their addresses; there is no such block
	waiting     []*entry            // the oldest first
	offered     int                 // requests that a free block was offered to and that did not take it yet
	making      int                 // blocks that are being made
}

// refusal is why a pool gives no block, or a subnet of it is not accepted.
type refusal struct{ reason, message string }

func notFound(name string) *refusal {
	return &refusal{v1alpha1.ReasonPoolNotFound, "there is no AddressPool " + name}
}

func exhausted(blocks int64, name string) *refusal {
	return &refusal{v1alpha1.ReasonPoolExhausted, fmt.Sprintf("all %d blocks of pool %s are given; append a subnet, or wait until a node returns one", blocks, name)}
}

func newBook() *book { return &book{pools: map[string]*poolBook{}, entries: map[string]*entry{}} }

// pool finds or makes the entry of a pool. Its blocks may arrive before the pool
// does. b.mu is held.
func (b *book) pool(name string) *poolBook {
	g := b.pools[name]
	if g == nil {
		g = &poolBook{name: name, carver: block.NewCarver(0), closed: notFound(name), unconfirmed: map[int64]time.Time{}, useless: map[int64]bool{}}
		b.pools[name] = g
	}
	return g
}

// tidy forgets a pool that is gone, once it has neither blocks nor requests. b.mu
// is held.
func (b *book) tidy(g *poolBook) {
	if b.pools[g.name] == g && g.uid == "" && g.given() == 0 && len(g.waiting)+g.offered+g.making == 0 {
		delete(b.pools, g.name)
	}
}

// open takes in a pool as it is now, with the layout of what may be cut of it,
// and returns the requests to reconcile again.
func (b *book) open(p *v1alpha1.AddressPool, l block.Layout, closed *refusal) (again []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.pool(p.Name)
	if g.uid != p.UID {
		g.uid = p.UID
		g.freeUseless()
		g.carver.Resume(p.Status.NextIndex)
	}
	g.layout = l
	return g.turn(closed)
}

// drop forgets a pool that is gone, but not the blocks that outlived it, and
// returns who waits for it.
func (b *book) drop(name string) (again []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.pools[name]
	if g == nil || g.uid == "" {
		return nil
	}
	g.uid, g.layout = "", block.Layout{}
	again = g.turn(notFound(name))
	b.tidy(g)
	return again
}

// turn sets why no block is given. All who wait are to hear of another reason.
func (g *poolBook) turn(closed *refusal) (again []string) {
	same := (g.closed == nil) == (closed == nil) && (closed == nil || *g.closed == *closed)
	g.closed = closed
	again = g.offerFree()
	if !same {
		for _, a := range g.waiting {
			again = append(again, a.name)
		}
	}
	return again
}

// given is how many blocks there are, or may be.
func (g *poolBook) given() int64 { return g.carver.Taken() - int64(len(g.useless)) }

// free is how many blocks nobody has.
func (g *poolBook) free() int64 { return max(0, g.layout.Blocks()-g.carver.Taken()) }

// offerFree offers the free blocks to the requests that wait longest. Each block
// is reserved for the request that it was offered to: later ones do not overtake.
func (g *poolBook) offerFree() (names []string) {
	for g.closed == nil && len(g.waiting) > 0 && int64(g.offered) < g.free() {
		a := g.waiting[0]
		g.waiting = g.waiting[1:]
		a.place = offered
		g.offered++
		names = append(names, a.name)
	}
	return names
}

// seen notes a block that a watch told of.
func (b *book) seen(poolName string, index int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.pool(poolName)
	g.carver.Mark(index)
	delete(g.unconfirmed, index)
	delete(g.useless, index)
}

// find lists the blocks, taken or not, that have an address.
func (b *book) find(a netip.Addr) (slots []slot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, g := range b.pools {
		if index, ok := g.layout.Find(a); ok {
			slots = append(slots, slot{name, index})
		}
	}
	return slots
}

// listed notes a block of a list that was read past the cache at now. The watch
// may have it or not.
func (b *book) listed(poolName string, index int64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.pool(poolName)
	before := g.carver.Taken()
	if g.carver.Mark(index); g.carver.Taken() > before {
		g.unconfirmed[index] = now
	}
}

// freed notes a block that is gone, and returns who may have one now.
func (b *book) freed(poolName string, index int64) (again []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.pools[poolName]
	if g == nil {
		return nil
	}
	return b.release(g, index)
}

// release is freed. b.mu is held.
func (b *book) release(g *poolBook, index int64) (again []string) {
	g.carver.Free(index)
	delete(g.unconfirmed, index)
	delete(g.useless, index)
	again = g.offerFree()
	b.tidy(g)
	return again
}

// freeUseless frees the indexes that were passed over because others had their addresses.
func (g *poolBook) freeUseless() {
	for index := range g.useless {
		g.carver.Free(index)
	}
	clear(g.useless)
}

// recheck frees the indexes that were passed over and whose blocks are useful now, and
// returns who may have one.
func (b *book) recheck(useful func(block.Block) bool) (again []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.pools {
		for index := range g.useless {
			if piece, err := g.layout.Block(index); err != nil || useful(piece) {
				again = append(again, b.release(g, index)...)
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

// unconfirmed lists the blocks that were taken before a time and of which no watch
// has told since, except those that are being made.
func (b *book) unconfirmed(before time.Time) (list []slot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	trying := map[slot]bool{}
	for _, a := range b.entries {
		if a.tried {
			trying[slot{a.pool.name, a.index}] = true
		}
	}
	for name, g := range b.pools {
		for index, since := range g.unconfirmed {
			if s := (slot{name, index}); since.Before(before) && !trying[s] {
				list = append(list, s)
			}
		}
	}
	return list
}

// counts are of one pool.
type counts struct {
	blocks, addresses v1alpha1.PoolCounts
	next              int64
	making            int
}

// counts of a pool that the book does not have are zero.
func (b *book) counts(name string) (c counts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.pools[name]
	if g == nil {
		return c
	}
	return g.counts()
}

func (g *poolBook) counts() counts {
	total, given, free := g.layout.Blocks(), g.given(), g.free()
	size := g.layout.BlockAddresses()
	return counts{
		blocks:    v1alpha1.PoolCounts{Total: total, Allocated: given, Free: free},
		addresses: v1alpha1.PoolCounts{Total: times(total, size), Allocated: times(given, size), Free: times(free, size)},
		next:      g.carver.Next(), making: g.making,
	}
}

// times multiplies, up to the largest number there is.
func times(a, b int64) int64 {
	if b != 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

// Usage is how much of a pool is given.
type Usage struct {
	Pool      string
	Blocks    v1alpha1.PoolCounts
	Addresses v1alpha1.PoolCounts
	Waiting   int // requests that failed and wait for a block
}

// Usage lists the pools by name. It is quick.
func (c *Controller) Usage() (list []Usage) {
	c.book.mu.Lock()
	defer c.book.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.book.pools)) {
		g := c.book.pools[name]
		if g.uid == "" {
			continue // there is no such pool
		}
		n := g.counts()
		list = append(list, Usage{Pool: name, Blocks: n.blocks, Addresses: n.addresses, Waiting: len(g.waiting)})
	}
	return list
}
