package addresspool

import (
	"fmt"
	"math"
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
	pools   map[string]*pages
	entries map[string]*entry // by the request's name
}

// pages are of one pool.
type pages struct {
	name    string
	uid     types.UID    // of the pool; empty: there is none
	layout  block.Layout // of the subnets that may be cut
	closed  *refusal     // why no block is given at all
	carver  *block.Carver
	unseen  map[int64]time.Time // taken indexes whose block no watch has told of, since when
	waiting []*entry            // the oldest first
	called  int                 // requests that were told of a free block and did not come for it yet
	making  int                 // blocks that are being made
}

// refusal is why a pool gives no block, or a subnet of it is not accepted.
type refusal struct{ reason, message string }

func notFound(name string) *refusal {
	return &refusal{v1alpha1.ReasonPoolNotFound, "there is no AddressPool " + name}
}

func exhausted(blocks int64, name string) *refusal {
	return &refusal{v1alpha1.ReasonPoolExhausted, fmt.Sprintf("all %d blocks of pool %s are given; append a subnet, or wait until a node returns one", blocks, name)}
}

func newBook() *book { return &book{pools: map[string]*pages{}, entries: map[string]*entry{}} }

// page finds or makes the pages of a pool. Its blocks may be heard of before it
// is. b.mu is held.
func (b *book) page(name string) *pages {
	g := b.pools[name]
	if g == nil {
		g = &pages{name: name, carver: block.NewCarver(0), closed: notFound(name), unseen: map[int64]time.Time{}}
		b.pools[name] = g
	}
	return g
}

// tidy forgets pages that nothing is written in. b.mu is held.
func (b *book) tidy(g *pages) {
	if b.pools[g.name] == g && g.uid == "" && g.carver.Taken() == 0 && len(g.waiting)+g.called+g.making == 0 {
		delete(b.pools, g.name)
	}
}

// open takes in a pool as it is now, with the layout of what may be cut of it,
// and returns the requests to look at again.
func (b *book) open(p *v1alpha1.AddressPool, l block.Layout, closed *refusal) (again []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.page(p.Name)
	if g.uid != p.UID {
		g.uid = p.UID
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
func (g *pages) turn(closed *refusal) (again []string) {
	same := (g.closed == nil) == (closed == nil) && (closed == nil || *g.closed == *closed)
	g.closed = closed
	again = g.call()
	if !same {
		for _, a := range g.waiting {
			again = append(again, a.name)
		}
	}
	return again
}

// free is how many blocks nobody has.
func (g *pages) free() int64 { return max(0, g.layout.Blocks()-g.carver.Taken()) }

// call tells those who wait longest of the free blocks. Each block is kept for
// who was told of it, so that nobody who comes later is faster.
func (g *pages) call() (names []string) {
	for g.closed == nil && len(g.waiting) > 0 && int64(g.called) < g.free() {
		a := g.waiting[0]
		g.waiting = g.waiting[1:]
		a.place = called
		g.called++
		names = append(names, a.name)
	}
	return names
}

// seen notes a block that a watch told of.
func (b *book) seen(poolName string, index int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.page(poolName)
	g.carver.Mark(index)
	delete(g.unseen, index)
}

// heard notes a block that a list has, at now, and a watch may have told of or not.
func (b *book) heard(poolName string, index int64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.page(poolName)
	before := g.carver.Taken()
	if g.carver.Mark(index); g.carver.Taken() > before {
		g.unseen[index] = now
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
func (b *book) release(g *pages, index int64) (again []string) {
	g.carver.Free(index)
	delete(g.unseen, index)
	again = g.call()
	b.tidy(g)
	return again
}

// spot is a place in a pool.
type spot struct {
	pool  string
	index int64
}

// unheard lists the blocks that were taken before a time and of which no watch
// has told since, except those that are being made.
func (b *book) unheard(before time.Time) (list []spot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	trying := map[spot]bool{}
	for _, a := range b.entries {
		if a.tried {
			trying[spot{a.pages.name, a.index}] = true
		}
	}
	for name, g := range b.pools {
		for index, since := range g.unseen {
			if s := (spot{name, index}); since.Before(before) && !trying[s] {
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

func (g *pages) counts() counts {
	total, given, free := g.layout.Blocks(), g.carver.Taken(), g.free()
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
