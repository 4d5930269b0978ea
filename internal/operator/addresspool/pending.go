package addresspool

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
)

// entry is what became of a request so far.
type entry struct {
	name  string
	uid   types.UID
	since time.Time // when the request was made
	pool  *poolBook
	place place

	index int64  // of the block, if tried
	tried bool   // a block was asked for, with no answer yet that is certain
	block string // that was made; the cache may trail it
}

// place is where a request stands.
type place int

const (
	nowhere place = iota
	waiting       // in poolBook.waiting
	offered       // counted in poolBook.offered
)

// offer is a block for a request: one to make, or one that was made before.
type offer struct {
	block string // that was made; else:
	index int64
	piece block.Block
	pool  types.UID
}

// take chooses a block for a request: the one that was made or tried for it
// before, or the next. What it offers to make is to be made, and then done is to
// be called. With a refusal the request waits: it is one of those that open,
// freed, done and end return once that may have changed.
func (b *book) take(r *v1alpha1.BlockRequest, now time.Time) (offer, *refusal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.entries[r.Name]
	if a == nil {
		a = &entry{name: r.Name, uid: r.UID, since: r.CreationTimestamp.Time}
		b.entries[r.Name] = a
	}
	if a.block != "" {
		return offer{block: a.block}, nil
	}
	a.leave()
	if g := b.pool(r.Spec.PoolName); a.pool != g { // new, or begun anew
		a.pool, a.tried = g, false
	}
	o, why := a.pool.offer(a, now)
	if why != nil {
		a.wait()
		return offer{}, why
	}
	a.pool.making++
	return o, nil
}

// begun tells whether a block was made, or asked for, for a request.
func (b *book) begun(r *v1alpha1.BlockRequest) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.entries[r.Name]
	return a != nil && a.uid == r.UID && (a.block != "" || a.tried)
}

// offer is take, for a request that does not wait.
func (g *poolBook) offer(a *entry, now time.Time) (o offer, why *refusal) {
	if g.closed != nil {
		return o, g.closed
	}
	if a.tried {
		piece, err := g.layout.Block(a.index)
		if err == nil {
			return offer{index: a.index, piece: piece, pool: g.uid}, nil
		}
		a.tried = false // the pool is another one; sweep finds out whether the block was made
	}
	if g.free() <= int64(g.offered) {
		return o, exhausted(g.layout.Blocks(), g.name)
	}
	index, ok := g.carver.Take(g.layout.Blocks())
	if !ok {
		return o, exhausted(g.layout.Blocks(), g.name)
	}
	g.unconfirmed[index] = now
	piece, err := g.layout.Block(index)
	if err != nil {
		return o, &refusal{v1alpha1.ReasonPoolInvalid, err.Error()}
	}
	a.index, a.tried = index, true
	return offer{index: index, piece: piece, pool: g.uid}, nil
}

// wait has a request wait for a block of its pool.
func (a *entry) wait() {
	a.place = waiting
	i, _ := slices.BinarySearchFunc(a.pool.waiting, a, older)
	a.pool.waiting = slices.Insert(a.pool.waiting, i, a)
}

func older(a, b *entry) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.name, b.name)) }

// leave ends waiting.
func (a *entry) leave() {
	switch a.place {
	case waiting:
		if i, ok := slices.BinarySearchFunc(a.pool.waiting, a, older); ok {
			a.pool.waiting = slices.Delete(a.pool.waiting, i, i+1)
		}
	case offered:
		a.pool.offered--
	}
	a.place = nowhere
}

// outcome is what came of an attempt to make a block.
type outcome int

const (
	made    outcome = iota // it is there, for this request
	taken                  // somebody else has it
	useless                // others have all of its addresses
	refused                // it was not made
	unknown                // it may have been made
)

// done ends what take began; block is the name of the one that was made.
// Returned are requests to reconcile again.
func (b *book) done(r *v1alpha1.BlockRequest, how outcome, block string) (again []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.entries[r.Name]
	if a == nil {
		return nil
	}
	a.pool.making--
	switch how {
	case made:
		a.tried, a.block = false, block
	case taken:
		a.tried = false
	case useless:
		a.tried = false
		if _, ok := a.pool.unconfirmed[a.index]; ok { // else an earlier attempt has made it
			delete(a.pool.unconfirmed, a.index)
			a.pool.useless[a.index] = true
		}
	case refused:
		a.tried = false
		return b.release(a.pool, a.index)
	}
	return a.pool.offerFree()
}

// end forgets a request that was answered or is gone: whatever has its name, but
// not the UID keep. Returned are the block that was asked for and may have been
// made or not, if there is one, and requests to reconcile again.
func (b *book) end(name string, keep types.UID) (uncertain *slot, again []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.entries[name]
	if a == nil || a.uid == keep {
		return nil, nil
	}
	delete(b.entries, name)
	if a.tried {
		uncertain = &slot{a.pool.name, a.index}
	}
	a.leave()
	again = a.pool.offerFree()
	b.tidy(a.pool)
	return uncertain, again
}
