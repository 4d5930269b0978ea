package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/waiting"
)

// policy is what an administrator decides.
type policy struct {
	cooling      time.Duration // how long a released address is kept back
	watermark    int           // percent of a block that is to be free
	releaseDelay time.Duration // how long a block is empty before it goes back
	ignoreUntold bool          // pods whose annotations are not told have none
	nodeName     string        // the Node's
}

// holdings is what the node has of address pools, and what it knows about them. It is values in memory and does no
// I/O; its owner locks it, and passes the time.
type holdings struct {
	policy   policy
	sync     *kubeapi.Sync
	node     types.UID    // of the Node; empty: there is none, or it was not listed yet
	nodeHas  []netip.Addr // addresses that the node has itself
	pools    pools
	blocks   blocks
	requests requests
	leases   leases

	filed       bool // the file said which blocks there are
	unconfirmed bool // blocks came from the file, and the API server still has a moment to correct them
	usable      bool // an address was assignable once
}

func newHoldings(p policy) *holdings {
	return &holdings{
		policy: p, sync: kubeapi.NewSync(), blocks: blocks{map[string]*heldBlock{}},
		pools:    pools{byName: map[string]*poolState{}, namespaces: map[string]string{}, chosen: map[podInterface]string{}, cooling: p.cooling},
		requests: requests{byName: map[string]*request{}, asked: map[string]bool{}, salts: map[slot]string{}},
		leases:   leases{byKey: map[attachment.Key]hold{}, byAddr: map[netip.Addr]attachment.Key{}, cooling: map[netip.Addr]time.Time{}},
	}
}

// nodeMissing tells whether there is no Node.
func (n *holdings) nodeMissing() bool { return n.sync.Listed(nodesResource) && n.node == "" }

// mayChoose tells whether all that determines the pool of a pod was listed.
func mayChoose(s *kubeapi.Sync) bool { return s.Listed(poolsResource, namespacesResource) }

// mayPlan tells whether the blocks, the requests and the Node are known. Nothing is requested before.
func mayPlan(s *kubeapi.Sync) bool { return s.Listed(blocksResource, requestsResource, nodesResource) }

// forget drops pools of which nothing is left here.
func (n *holdings) forget() {
	left := false
	for _, s := range n.pools.byName {
		left = left || !s.known
	}
	if !left {
		return
	}
	used := map[string]bool{}
	for _, b := range n.blocks.byName {
		used[b.pool] = true
	}
	for _, h := range n.leases.byKey {
		used[h.allocatedIn] = true
	}
	for _, r := range n.requests.byName {
		used[r.pool] = true
	}
	for name, s := range n.pools.byName {
		if _, cools := s.alloc.NextExpiry(); !s.known && !used[name] && s.queue.Len() == 0 && !cools {
			delete(n.pools.byName, name)
		}
	}
}

// expire ends what has cooled by now.
func (n *holdings) expire(now time.Time) {
	for _, s := range n.pools.byName {
		s.alloc.Expire(now)
	}
	for a, since := range n.leases.cooling {
		if !since.Add(n.policy.cooling).After(now) {
			delete(n.leases.cooling, a)
		}
	}
}

// restore marks a lease as held, whether the node has its block yet or not.
func (n *holdings) restore(req source.Request, lease source.Lease, now time.Time) error {
	if len(lease.Addrs()) == 0 {
		return errors.New("it has no address")
	}
	if _, ok := n.leases.byKey[req.Key]; ok {
		return errors.New("the attachment has one already")
	}
	for _, a := range lease.Addrs() {
		if other, taken := n.leases.byAddr[a]; taken {
			return fmt.Errorf("%s is held by %s", a, other)
		}
	}
	h := hold{Lease: lease, pod: req.Pod}
	if b, first := n.blocks.holding(lease.Addrs()[0]); b != nil {
		if err := n.pools.get(b.pool).alloc.Hold(req.Key, first, now); err != nil {
			return err
		}
		h.allocatedIn, h.Pool, h.Block = b.pool, b.pool, b.name
	}
	n.keep(req.Key, h)
	n.usable = true
	return nil
}

// keep enters a lease.
func (n *holdings) keep(key attachment.Key, h hold) {
	n.leases.add(key, h)
	if h.pod.UID != "" && h.Pool != "" && !mayChoose(n.sync) {
		n.pools.chosen[interfaceOf(key, h.pod)] = h.Pool
	}
}

// restoreCooling marks an address as cooling, or as having cooled, and with it
// the other one of its pair. Where the block is not known, only an
// address that still cools matters.
func (n *holdings) restoreCooling(a netip.Addr, since, now time.Time) {
	if since.After(now) {
		since = now // the wall clock was set back: never cool longer than a period
	}
	n.usable = true
	if b, first := n.blocks.holding(a); b != nil {
		n.pools.get(b.pool).alloc.Cool(first, since, now)
		return
	}
	if since.Add(n.policy.cooling).After(now) {
		n.leases.cool(a, since)
	}
}

// admit queues a request, and serves it at once if it is its turn. A request for which
// there is no pool fails at once.
func (n *holdings) admit(req source.Request, now time.Time) *waiting.Waiter {
	w := n.pools.undecided.Push(req)
	n.decide(w, now)
	return w
}

// decide moves a waiter to the queue of its pool, if that is known by now.
func (n *holdings) decide(w *waiting.Waiter, now time.Time) {
	name, final, why := n.pools.choose(w.Request.Pod, n.policy.told(w.Request.Wish))
	if before := n.pools.chosen[interfaceOf(w.Request.Key, w.Request.Pod)]; name == "" && !final && before != "" {
		name = before // it was chosen by what the API server said then, which does not answer now
	}
	switch {
	case name != "":
		s := n.pools.get(name)
		w.Move(&s.queue)
		n.serve(s, now)
	case final:
		w.Fail(why)
	}
}

// decideAll looks again at those whose pool was not known. Once namespaces and
// pools were listed, it is chosen by them, and no longer by what is remembered.
func (n *holdings) decideAll(now time.Time) {
	if mayChoose(n.sync) {
		clear(n.pools.chosen)
	}
	for _, w := range n.pools.undecided.All() {
		n.decide(w, now)
	}
}

// serve hands out addresses of a pool in the order of arrival while any is
// assignable. All handing out is done here.
func (n *holdings) serve(s *poolState, now time.Time) {
	for s.queue.Len() > 0 && !n.unconfirmed {
		w := s.queue.Front()
		a, ok := s.alloc.Take(w.Request.Key, now)
		if !ok {
			return
		}
		lease := source.Lease{Origin: introspect.Origin{Pool: s.name, Block: a.Group}}
		for _, addr := range n.blocks.byName[a.Group].addresses(a.Addr) {
			if addr.Is4() {
				lease.IPv4 = addr
			} else {
				lease.IPv6 = addr
			}
		}
		n.keep(w.Request.Key, hold{Lease: lease, pod: w.Request.Pod, allocatedIn: s.name})
		w.Grant(lease)
	}
}

// serveAll serves every pool.
func (n *holdings) serveAll(now time.Time) {
	for _, s := range n.pools.byName {
		n.serve(s, now)
	}
}

// release ends a hold; the addresses cool from now on.
func (n *holdings) release(key attachment.Key, now time.Time) bool {
	h, ok := n.leases.drop(key)
	if !ok {
		return false
	}
	if h.allocatedIn == "" {
		for _, a := range h.Addrs() {
			n.leases.cool(a, now)
		}
		return true
	}
	s := n.pools.byName[h.allocatedIn]
	s.alloc.Release(key, now)
	n.serve(s, now) // without a cooling period it is free at once
	return true
}

// cancel ends a hold whose addresses no pod ever had.
func (n *holdings) cancel(key attachment.Key, now time.Time) bool {
	h, ok := n.leases.drop(key)
	if ok && h.allocatedIn != "" {
		s := n.pools.byName[h.allocatedIn]
		s.alloc.Cancel(key)
		n.serve(s, now)
	}
	return ok
}

// setBlock takes a block that the API server, or the file, says this node has.
func (n *holdings) setBlock(f blockFacts, listed bool, now time.Time) {
	h, ok := n.blocks.byName[f.name]
	if ok && !h.same(f) {
		n.removeBlock(f.name, now)
		ok = false
	}
	if !ok {
		h = &heldBlock{}
		n.blocks.byName[f.name] = h
	}
	told := ok && slices.Equal(h.withheld, f.withheld)
	h.blockFacts, h.listed, h.lost = f, listed, false
	switch {
	case !ok:
		n.addToAllocator(h, now)
	case !told:
		n.withhold(h)
	}
	n.refresh(h)
}

// addToAllocator takes a block's addresses into its pool's allocator, those first that
// are held or cool already.
func (n *holdings) addToAllocator(h *heldBlock, now time.Time) {
	h.conflict = ""
	for _, name := range n.blocks.names() {
		if o := n.blocks.byName[name]; o != h && o.conflict == "" && o.overlaps(h.blockFacts) {
			h.conflict = name
			return
		}
	}
	s := n.pools.get(h.pool)
	for key, lease := range n.leases.byKey {
		for _, a := range lease.Addrs() {
			if first, ok := h.place(a); ok && lease.allocatedIn == "" {
				if err := s.alloc.Hold(key, first, now); err == nil {
					lease.allocatedIn, lease.Pool, lease.Block = s.name, s.name, h.name
					n.leases.byKey[key] = lease
				}
				break
			}
		}
	}
	for a, since := range n.leases.cooling {
		if first, ok := h.place(a); ok {
			s.alloc.Cool(first, since, now)
		}
	}
	s.alloc.SetGroup(ipam.Group{ID: h.name, Prefixes: []netip.Prefix{h.first}})
	n.withhold(h)
}

// refresh tells the allocator whether a block's addresses may be handed out.
func (n *holdings) refresh(h *heldBlock) {
	if h.conflict != "" {
		return
	}
	n.pools.get(h.pool).alloc.SetReady(h.name, h.serves())
	n.usable = n.usable || h.serves()
}

// loseBlock takes that the API server does not have a block any more. It should
// be on its way out; if pods have addresses of it, somebody took it from under
// them, and it stays for them.
func (n *holdings) loseBlock(name string, now time.Time) (pods int) {
	h, ok := n.blocks.byName[name]
	if !ok {
		return 0
	}
	if pods = n.pools.usedIn(h); pods > 0 {
		h.listed, h.lost, h.finalizers = false, true, nil
		n.refresh(h)
		return pods
	}
	n.removeBlock(name, now)
	return 0
}

// removeBlock forgets a block. What of it is held or cools is remembered
// without it.
func (n *holdings) removeBlock(name string, now time.Time) {
	h := n.blocks.byName[name]
	delete(n.blocks.byName, name)
	if h.conflict != "" {
		return
	}
	n.dropFromAllocator(h)
	for _, other := range n.blocks.names() {
		if o := n.blocks.byName[other]; o.conflict == name {
			n.addToAllocator(o, now)
			n.refresh(o)
		}
	}
}

// dropFromAllocator takes a block's addresses out of its pool's allocator.
func (n *holdings) dropFromAllocator(h *heldBlock) {
	s := n.pools.get(h.pool)
	var held []attachment.Key
	for v := range s.alloc.Busied() {
		if v.Group != h.name {
			continue
		}
		if v.Used {
			held = append(held, v.Key)
			continue
		}
		for _, a := range h.addresses(v.Addr) {
			n.leases.cooling[a] = v.Since
		}
	}
	for _, key := range held {
		s.alloc.Cancel(key)
		lease := n.leases.byKey[key]
		lease.allocatedIn = ""
		n.leases.byKey[key] = lease
	}
	s.alloc.LoseGroup(h.name)
}

// review looks what became of the blocks: which are empty since when, and which
// are at their end.
func (n *holdings) review(now time.Time) {
	for name, h := range n.blocks.byName {
		busy := 0
		if h.conflict == "" {
			c := n.pools.counts(h)
			busy = c.Used + c.Cooling
		}
		switch {
		case busy > 0:
			h.emptySince = time.Time{}
		case h.lost:
			n.removeBlock(name, now)
			continue
		case h.emptySince.IsZero():
			h.emptySince = now
		}
		if busy == 0 && h.draining && h.listed && h.release == notReleased {
			h.release = withdrawn
			n.refresh(h)
		}
	}
}

// each calls do with the node's blocks that are those of list.
func (n *holdings) each(list []blockFacts, do func(*heldBlock)) {
	for _, b := range list {
		if h, ok := n.blocks.byName[b.name]; ok && h.same(b) {
			do(h)
			n.refresh(h)
		}
	}
}

// withhold keeps what others, or the node itself, have of a block from being handed out, and returns
// the addresses of the first family that no pod holds.
func (n *holdings) withhold(h *heldBlock) []netip.Addr {
	if h.conflict != "" {
		return nil
	}
	places := h.withheldPlaces()
	for _, a := range n.nodeHas {
		if first, ok := h.place(a); ok {
			places = append(places, first)
		}
	}
	return n.pools.get(h.pool).alloc.Withhold(h.name, places)
}

// earlier is the earlier of two moments, of which zero is none.
func earlier(x, y time.Time) time.Time {
	if x.IsZero() || !y.IsZero() && y.Before(x) {
		return y
	}
	return x
}
