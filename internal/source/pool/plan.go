package pool

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/retry"
)

// Requests to the API server. Only the watch adds blocks and requests to the holdings or removes them, never a reply. An
// action is repeated until the watch shows its outcome. So there is one order of events, and lost or late replies do no
// harm. Replies record only what the watch does not show: why a request could not be created (poolState.refused), that
// another node's request has its name (requests.avoid), and that its block no longer exists (request.spent).
const (
	createRequest = "create-request" // create the BlockRequest name for pool
	deleteRequest = "delete-request" // delete the BlockRequest with uid
	lookForBlock  = "look-for-block" // read the AddressBlock of a complete request, which the watch has not shown
	returnBlock   = "return-block"   // delete the empty AddressBlock with uid
	freeBlock     = "free-block"     // remove the finalizer of the AddressBlock, which the node no longer uses
)

// action is one request to the API server.
type action struct {
	kind, name, pool string
	uid              types.UID
	request          types.UID // UID of the BlockRequest, for lookForBlock
	block            blockFacts
}

const (
	// surplusFor is how long an unneeded request is kept, because pods retry a failed ADD.
	surplusFor = time.Minute
	// lookAfter is how long the block of a complete request must be missing before it is looked up.
	lookAfter = time.Second
)

// planning computes one plan: the actions to start now, and the latest time of the next plan.
type planning struct {
	n        *holdings
	nodeName string
	now      time.Time
	todo     []action
	next     time.Time // zero: only when something changes
}

// plan plans for all pools. It records which blocks are being returned and which requests are being created.
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

// again schedules the next plan for at, or earlier.
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

// requestsOf creates a request for each missing block that has none. It deletes answered requests and long-unneeded
// ones; the newest become unneeded first.
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
