package pool

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/retry"
)

// Requests to the API server. No reply puts a block or a request into the holdings, or takes one out: an action is wanted
// until the watch shows its outcome, so that there is one order of events, and lost or late replies do no harm. Only what
// the watch does not show is noted: why a request could not be created (poolState.refused), that another node has its
// name (requests.avoid), and that its block no longer exists (request.spent).
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
	// surplusFor is how long a request is kept for which no pod waits: pods whose ADD has failed retry.
	surplusFor = time.Minute
	// lookAfter is how long the block of a complete request must be missing before it is looked up.
	lookAfter = time.Second
)

// planning is one plan: what is to be asked of the API server now, and when to plan again at the latest.
type planning struct {
	n        *holdings
	nodeName string
	now      time.Time
	todo     []action
	next     time.Time // zero: when something changes
}

// plan plans for all pools. It marks the blocks that go back, and the requests that are made.
func (n *holdings) plan(nodeName string, now time.Time) (todo []action, next time.Time) {
	if !mayPlan(n.sync) {
		return nil, time.Time{}
	}
	p := &planning{n: n, nodeName: nodeName, now: now}
	for _, name := range slices.Sorted(maps.Keys(n.pools.byName)) {
		p.pool(n.pools.byName[name])
	}
	for name, h := range n.blocks.byName {
		if h.release == cleared && slices.Contains(h.finalizers, v1alpha1.FinalizerBlock) {
			p.todo = append(p.todo, action{kind: freeBlock, name: name, pool: h.pool, uid: h.uid, block: h.blockFacts})
		}
	}
	return p.todo, p.next
}

// again has the next plan made at a moment at the latest.
func (p *planning) again(at time.Time) { p.next = retry.Earliest(time.Time{}, p.next, at) }

// pool plans for one pool.
func (p *planning) pool(s *poolState) {
	have, empty := p.n.blocks.supplyOf(s)
	names, next := toReturn(have, p.n.policy.watermark, empty, p.n.policy.releaseDelay, p.now)
	p.again(next)
	for _, h := range p.n.blocks.byName {
		if h.pool == s.name {
			h.setReturning(slices.Contains(names, h.name))
		}
	}
	for _, name := range names {
		p.todo = append(p.todo, action{kind: returnBlock, name: name, pool: s.name, uid: p.n.blocks.byName[name].uid})
	}
	p.requestsOf(s, have)
}

// requestsOf makes as many requests as the pool lacks blocks without a request, and deletes those that are done,
// or that nobody has needed for a while, the youngest first.
func (p *planning) requestsOf(s *poolState, have supply) {
	lacking := 0
	if s.known && !s.deleting {
		lacking = have.blocks(p.n.policy.watermark)
	}
	used := map[int]bool{}
	for _, r := range p.n.requests.of(s.name) {
		used[slotOf(r.name)] = true
		remove := action{kind: deleteRequest, name: r.name, pool: s.name, uid: r.uid}
		switch {
		case p.n.blocks.answered(r):
			p.n.requests.measure(r, p.now)
			if r.complete() || r.spent {
				p.todo = append(p.todo, remove)
			}
			continue
		case r.complete() && r.completed.Add(lookAfter).After(p.now):
			p.again(r.completed.Add(lookAfter))
		case r.complete():
			p.todo = append(p.todo, action{kind: lookForBlock, name: r.block, pool: s.name, request: r.uid})
		}
		if lacking > 0 {
			lacking--
			r.surplus = time.Time{}
			continue
		}
		if r.surplus.IsZero() {
			r.surplus = p.now
		}
		if due := r.surplus.Add(surplusFor); due.After(p.now) {
			p.again(due)
		} else if !r.complete() {
			p.todo = append(p.todo, remove)
		}
	}
	p.todo = append(p.todo, p.n.requests.ask(s.name, p.nodeName, used, lacking)...)
}
