package addresspool

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
)

// pending is a request that the allocator tracks until forget. The allocator's lock guards it.
type pending struct {
	name  string
	uid   types.UID
	since time.Time // when the request was created
	pool  *poolBlocks
	place place

	index int64  // of the block, if tried
	tried bool   // a block was chosen, and it is not known yet whether it was created
	block string // name of the created block; the informer cache may not have it yet
}

// place is where a request waits.
type place int

const (
	nowhere place = iota
	waiting       // in poolBlocks.waiting
	offered       // counted in poolBlocks.offered
)

// offer is a block for a request: one that was created before, or one to create.
type offer struct {
	block string // name of the existing block; if empty, create the block described below
	index int64
	piece block.Block
	pool  types.UID
}

// allocate chooses a block for a request: the one that was created or tried for it before, or the
// next free one. If the block is to be created, the caller must try to create the block and then
// call finish. A refused request waits: setPool, release, finish and forget return it once the
// answer may have changed.
func (a *allocator) allocate(r *v1alpha1.BlockRequest, now time.Time) (offer, *refusal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pending[r.Name]
	if p == nil {
		p = &pending{name: r.Name, uid: r.UID, since: r.CreationTimestamp.Time}
		a.pending[r.Name] = p
	}
	if p.block != "" {
		return offer{block: p.block}, nil
	}
	p.leave()
	if of := a.pool(r.Spec.PoolName); p.pool != of { // a new request, or one with another pool
		p.pool, p.tried = of, false
	}
	o, why := p.pool.offer(p, now)
	if why != nil {
		p.wait()
		return offer{}, why
	}
	p.pool.making++
	return o, nil
}

// isStarted reports whether a block was created or tried for a request.
func (a *allocator) isStarted(r *v1alpha1.BlockRequest) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pending[r.Name]
	return p != nil && p.uid == r.UID && (p.block != "" || p.tried)
}

// offer does allocate's work for a request that is not queued.
func (p *poolBlocks) offer(r *pending, now time.Time) (o offer, why *refusal) {
	if p.closed != nil {
		return o, p.closed
	}
	if r.tried {
		piece, err := p.layout.Block(r.index)
		if err == nil {
			return offer{index: r.index, piece: piece, pool: p.uid}, nil
		}
		r.tried = false // the pool was recreated; the sweep finds out whether the block exists
	}
	if p.free() <= int64(p.offered) {
		return o, exhausted(p.layout.Blocks(), p.name)
	}
	index, ok := p.carver.Take(p.layout.Blocks())
	if !ok {
		return o, exhausted(p.layout.Blocks(), p.name)
	}
	p.unconfirmed[index] = now
	piece, err := p.layout.Block(index)
	if err != nil {
		return o, &refusal{v1alpha1.ReasonPoolInvalid, err.Error()}
	}
	r.index, r.tried = index, true
	return offer{index: index, piece: piece, pool: p.uid}, nil
}

// wait queues a request for a block of its pool.
func (r *pending) wait() {
	r.place = waiting
	i, _ := slices.BinarySearchFunc(r.pool.waiting, r, older)
	r.pool.waiting = slices.Insert(r.pool.waiting, i, r)
}

func older(a, b *pending) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.name, b.name)) }

func (r *pending) leave() {
	switch r.place {
	case waiting:
		if i, ok := slices.BinarySearchFunc(r.pool.waiting, r, older); ok {
			r.pool.waiting = slices.Delete(r.pool.waiting, i, i+1)
		}
	case offered:
		r.pool.offered--
	}
	r.place = nowhere
}

// outcome is the result of an attempt to create a block.
type outcome int

const (
	made     outcome = iota // the block exists, for this request
	taken                   // the block exists, for another request
	unusable                // all of its addresses are in use
	refused                 // the block was not created
	unknown                 // the block may have been created
)

// finish records the outcome of creating the block that allocate chose, and the name of the block if
// it was created. It returns the requests to reconcile again.
func (a *allocator) finish(r *v1alpha1.BlockRequest, how outcome, block string) (again []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pending[r.Name]
	if p == nil {
		return nil
	}
	p.pool.making--
	switch how {
	case made:
		p.tried, p.block = false, block
	case taken:
		p.tried = false
	case unusable:
		p.tried = false
		if _, ok := p.pool.unconfirmed[p.index]; ok { // otherwise an earlier attempt created the block
			delete(p.pool.unconfirmed, p.index)
			p.pool.unusable[p.index] = true
		}
	case refused:
		p.tried = false
		return a.releaseIndex(p.pool, p.index)
	}
	return p.pool.offerFree()
}

// forget drops the request with this name, unless its UID is keep. It returns the block that was
// tried for the request and may exist, if any, and the requests to reconcile again.
func (a *allocator) forget(name string, keep types.UID) (uncertain *slot, again []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pending[name]
	if p == nil || p.uid == keep {
		return nil, nil
	}
	delete(a.pending, name)
	if p.tried {
		uncertain = &slot{p.pool.name, p.index}
	}
	p.leave()
	again = p.pool.offerFree()
	a.forgetIfUnused(p.pool)
	return uncertain, again
}
