package addresspool

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/pool"
)

// book is which blocks of each pool are taken, and which requests wait for one.
// It makes no request: all of its methods are quick.
type book struct {
	mu    sync.Mutex // guards all below
	pools map[string]*pages
	tries map[string]try // by request: blocks of which it is not known whether they were made
}

// pages are of one pool.
type pages struct {
	uid     types.UID
	layout  pool.Layout // of the accepted subnets
	carver  *pool.Carver
	closed  *refusal // why no block is given at all
	waiting []waiter // requests that failed, the oldest first
	making  int      // blocks that are being made
}

// waiter is a request that waits for a block.
type waiter struct {
	name  string
	since time.Time
}

// try is a block that was asked for, with or without an answer.
type try struct {
	request types.UID
	pool    string
	index   int64
}

func newBook() *book { return &book{pools: map[string]*pages{}, tries: map[string]try{}} }

// page finds or makes the pages of a pool. Its blocks may be heard of before it
// is. b.mu is held.
func (b *book) page(name string) *pages {
	g := b.pools[name]
	if g == nil {
		g = &pages{carver: pool.NewCarver(0), closed: notFound(name)}
		b.pools[name] = g
	}
	return g
}

func notFound(name string) *refusal {
	return &refusal{v1alpha1.ReasonPoolNotFound, "there is no AddressPool " + name}
}

// open takes in a pool as it is now. Returned are requests to look at again.
func (b *book) open(p *v1alpha1.AddressPool, l pool.Layout, closed *refusal) (again []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.page(p.Name)
	if g.uid != p.UID {
		g.uid = p.UID
		g.carver.Resume(p.Status.NextIndex)
	}
	changed := g.layout.Blocks() != l.Blocks() || (g.closed == nil) != (closed == nil) || closed != nil && *g.closed != *closed
	g.layout, g.closed = l, closed
	if changed {
		return g.wake(len(g.waiting))
	}
	return nil
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
	again = g.wake(len(g.waiting))
	g.uid, g.layout, g.closed = "", pool.Layout{}, notFound(name)
	if g.carver.Taken() == 0 && g.making == 0 {
		delete(b.pools, name)
	}
	return again
}

// wake takes the oldest of those who wait.
func (g *pages) wake(n int) (names []string) {
	for _, w := range g.waiting[:min(n, len(g.waiting))] {
		names = append(names, w.name)
	}
	g.waiting = slices.Delete(g.waiting, 0, len(names))
	return names
}

// seen notes a block that there is.
func (b *book) seen(poolName string, index int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.page(poolName).carver.Mark(index)
}

// freed notes a block that is gone, and returns who may have it now.
func (b *book) freed(poolName string, index int64) (again []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.pools[poolName]
	if g == nil {
		return nil
	}
	g.carver.Free(index)
	return g.wake(1)
}

// take chooses a block for a request: the one that was tried for it before, or
// the next. The caller makes the block and then calls done or lost.
func (b *book) take(r *v1alpha1.BlockRequest) (index int64, block pool.Block, poolUID types.UID, why *refusal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.pools[r.Spec.PoolName]
	switch {
	case g == nil:
		return 0, block, "", notFound(r.Spec.PoolName)
	case g.closed != nil:
		return 0, block, "", g.closed
	}
	t, tried := b.tries[r.Name]
	if !tried {
		i, ok := g.carver.Take(g.layout.Blocks())
		if !ok {
			why = &refusal{v1alpha1.ReasonPoolExhausted, fmt.Sprintf("all %d blocks of pool %s are given; append a subnet, or wait until a node returns one", g.layout.Blocks(), r.Spec.PoolName)}
			return 0, block, "", why
		}
		t = try{r.UID, r.Spec.PoolName, i}
		b.tries[r.Name] = t
	}
	block, err := g.layout.Block(t.index)
	if err != nil {
		delete(b.tries, r.Name)
		return 0, block, "", &refusal{v1alpha1.ReasonPoolInvalid, err.Error()}
	}
	g.making++
	return t.index, block, g.uid, nil
}

// outcome is what came of an attempt to make a block.
type outcome int

const (
	made    outcome = iota // it is there, for this request
	taken                  // somebody else has it
	refused                // it was not made
	unknown                // it may have been made
)

// done ends what take began.
func (b *book) done(r *v1alpha1.BlockRequest, how outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tries[r.Name]
	g := b.pools[t.pool]
	if g != nil {
		g.making--
	}
	if how == unknown {
		return
	}
	delete(b.tries, r.Name)
	if how == refused && g != nil {
		g.carver.Free(t.index)
	}
}

// abandoned tells which block was tried for a request of a name that is not the
// one with uid, and so is gone, if any.
func (b *book) abandoned(name string, uid types.UID) (t try, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, ok = b.tries[name]
	if !ok || t.request == uid {
		return t, false
	}
	delete(b.tries, name)
	return t, true
}

// wait notes a request that failed, to be looked at again when that may change.
func (b *book) wait(r *v1alpha1.BlockRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.page(r.Spec.PoolName)
	w := waiter{r.Name, r.CreationTimestamp.Time}
	i, there := slices.BinarySearchFunc(g.waiting, w, func(a, b waiter) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.name, b.name))
	})
	if !there {
		g.waiting = slices.Insert(g.waiting, i, w)
	}
}

// counts of one pool. State of a pool that the book does not have is zero.
type counts struct {
	blocks, addresses v1alpha1.PoolCounts
	next              int64
	making            int
	closed            *refusal
}

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
	total, given := g.layout.Blocks(), g.carver.Taken()
	size := g.layout.BlockAddresses()
	return counts{
		blocks:    v1alpha1.PoolCounts{Total: total, Allocated: given, Free: max(0, total-given)},
		addresses: v1alpha1.PoolCounts{Total: times(total, size), Allocated: times(given, size), Free: times(max(0, total-given), size)},
		next:      g.carver.Next(), making: g.making, closed: g.closed,
	}
}

// times multiplies, up to the largest number there is.
func times(a, b int64) int64 {
	if b != 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}
