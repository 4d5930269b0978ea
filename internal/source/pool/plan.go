package pool

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
)

// What the API server may be asked to do. A reply changes nothing in the ledger:
// an action is wanted until the watch shows its outcome, so that there is one
// order of events, and a reply that was lost or late does no harm.
const (
	createRequest = "create-request" // BlockRequest name, for pool
	deleteRequest = "delete-request" // the BlockRequest with uid
	lookForBlock  = "look-for-block" // that the complete request with uid names: the watch has not shown it
	returnBlock   = "return-block"   // delete the AddressBlock with uid, which is empty
	freeBlock     = "free-block"     // remove the finalizer of the AddressBlock, which nothing here has any more
)

// action is one request to the API server.
type action struct {
	kind, name, pool string
	uid              types.UID
	request          types.UID // of lookForBlock
	block            blockFacts
}

const (
	// surplusFor is how long a request is kept that no pod waits for: pods whose
	// ADD has failed try again.
	surplusFor = time.Minute
	// lookAfter is how long after a request became complete its block must be
	// missing before it is looked for.
	lookAfter = time.Second
)

// mayPlan tells whether the blocks and requests that there are, and the Node, are
// known: before that nothing is asked for.
func (l *ledger) mayPlan() bool { return l.synced.blocks && l.synced.requests && l.node.listed }

// plan says what is to be asked of the API server now, and when to look again at
// the latest; zero: when something changes.
func (l *ledger) plan(node string, now time.Time) (todo []action, next time.Time) {
	if !l.mayPlan() {
		return nil, time.Time{}
	}
	for _, name := range slices.Sorted(maps.Keys(l.pools)) {
		actions, at := l.planPool(l.pools[name], node, now)
		todo, next = append(todo, actions...), earlier(next, at)
	}
	for name, h := range l.blocks {
		if h.release == cleared && slices.Contains(h.finalizers, v1alpha1.FinalizerBlock) {
			todo = append(todo, action{kind: freeBlock, name: name, pool: h.pool, uid: h.uid, block: h.blockFacts})
		}
	}
	return todo, next
}

// planPool plans for one pool.
func (l *ledger) planPool(s *poolState, node string, now time.Time) (todo []action, next time.Time) {
	have, empty := l.supplyOf(s)
	names, next := toReturn(have, l.watermark, empty, l.releaseDelay, now)
	for _, h := range l.blocks {
		if h.pool == s.name {
			l.setReturning(h, slices.Contains(names, h.name))
		}
	}
	for _, name := range names {
		todo = append(todo, action{kind: returnBlock, name: name, pool: s.name, uid: l.blocks[name].uid})
	}
	more, at := l.planRequests(s, have, node, now)
	return append(todo, more...), earlier(next, at)
}

func (l *ledger) setReturning(h *heldBlock, v bool) {
	if h.returning != v {
		h.returning = v
		l.refresh(h)
	}
}

// supplyOf sums up what this node has of a pool, and which of it is idle. Blocks
// on their way back count while nothing has come of that.
func (l *ledger) supplyOf(s *poolState) (supply, []idle) {
	have := supply{size: s.size, waiting: s.queue.Len()}
	have.warm = s.known && !s.deleting && (s.name == v1alpha1.DefaultPool || s.queue.Len() > 0)
	var empty []idle
	stuck := l.stuck(s)
	for _, h := range l.blocks {
		if h.pool != s.name || h.conflict != "" {
			continue
		}
		c := l.counts(h)
		have.warm = have.warm || c.Used > 0 && s.known && !s.deleting
		if have.size == 0 {
			have.size = sizeOf(h.first)
		}
		if h.deleted() || h.lost || h == stuck {
			continue
		}
		have.free += min(c.Free, 1<<maxBits)
		if !h.emptySince.IsZero() && h.listed {
			empty = append(empty, idle{name: h.name, free: min(c.Free, 1<<maxBits), since: h.emptySince})
		}
	}
	return have, empty
}

// stuck is the block of a pool that has no route while others can: nobody waits
// for it. Of two such none is meant: then it is not the block's fault, and more of
// them would not help.
func (l *ledger) stuck(s *poolState) (only *heldBlock) {
	for _, h := range l.blocks {
		if h.pool != s.name || !h.unroutable || h.programmed {
			continue
		}
		if only != nil {
			return nil
		}
		only = h
	}
	return only
}

// planRequests makes as many requests as the pool lacks blocks and have no
// answer yet, and deletes those that are done, or that nobody has needed for a
// while, the youngest first.
func (l *ledger) planRequests(s *poolState, have supply, node string, now time.Time) (todo []action, next time.Time) {
	lacking := 0
	if s.known && !s.deleting {
		lacking = have.blocks(l.watermark)
	}
	used := map[int]bool{}
	for _, r := range l.requestsOf(s.name) {
		used[slotOf(r.name)] = true
		remove := action{kind: deleteRequest, name: r.name, pool: s.name, uid: r.uid}
		switch {
		case l.answered(r):
			l.measure(r, now)
			if r.complete() || r.spent {
				todo = append(todo, remove)
			}
			continue
		case r.complete() && r.completed.Add(lookAfter).After(now):
			next = earlier(next, r.completed.Add(lookAfter))
		case r.complete():
			todo = append(todo, action{kind: lookForBlock, name: r.block, pool: s.name, request: r.uid})
		}
		if lacking > 0 {
			lacking--
			r.surplus = time.Time{}
			continue
		}
		if r.surplus.IsZero() {
			r.surplus = now
		}
		if due := r.surplus.Add(surplusFor); due.After(now) {
			next = earlier(next, due)
		} else if !r.complete() {
			todo = append(todo, remove)
		}
	}
	return append(todo, l.ask(s.name, node, used, lacking)...), next
}

// ask makes up to n requests in slots that are not used. A request that is on
// its way already is one of them, and is made in the same slot again: another
// would be one too many.
func (l *ledger) ask(pool, node string, used map[int]bool, n int) (todo []action) {
	for _, again := range []bool{true, false} {
		for i := 0; i < maxOutstanding && n > 0; i++ {
			name := l.nameFor(slot{pool, i}, node)
			if used[i] || l.asked[name] != again {
				continue
			}
			used[i], l.asked[name] = true, true
			todo = append(todo, action{kind: createRequest, name: name, pool: pool})
			n--
		}
	}
	return todo
}
