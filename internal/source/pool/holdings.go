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
	"github.com/berthnet/berth/internal/source/addressqueue"
)

// policy holds the settings that concern blocks and addresses.
type policy struct {
	cooling      time.Duration // how long a released address is withheld
	watermark    int           // percentage of a block to keep free
	releaseDelay time.Duration // how long a block is empty before it is released
	ignoreUntold bool          // pods whose annotations the runtime does not pass count as having none
	nodeName     string        // InternalIPs of the Node
}

// holdings is the node's state of address pools: blocks, leases and requests. It is kept in memory and does no
// I/O; its owner locks it, and passes the current time.
type holdings struct {
	policy   policy
	sync     *kubeapi.Sync
	node     types.UID    // UID of the Node; empty: it does not exist or was not listed yet
	nodeHas  []netip.Addr // addresses that the node itself or other software on it has
	pools    pools
	blocks   blocks
	requests requests
	leases   leases

	filed       bool // the blocks were loaded from the file
	unconfirmed bool // the blocks are from the file, and the API server still has time to correct them
	usable      bool // an address has been assignable
}

func newHoldings(p policy) *holdings {
	return &holdings{
		policy: p, sync: kubeapi.NewSync(), blocks: blocks{map[string]*heldBlock{}},
		pools:    pools{byName: map[string]*poolState{}, namespaces: map[string]string{}, chosen: map[podInterface]string{}, cooling: p.cooling},
		requests: requests{byName: map[string]*request{}, pending: map[string]bool{}, salts: map[slot]string{}},
		leases:   leases{byKey: map[attachment.Key]hold{}, byAddr: map[netip.Addr]attachment.Key{}, cooling: map[netip.Addr]time.Time{}},
	}
}

// nodeMissing reports whether the Node does not exist.
func (n *holdings) nodeMissing() bool { return n.sync.Listed(nodesResource) && n.node == "" }

// mayChoose reports whether all objects that determine a pod's pool were listed.
func mayChoose(s *kubeapi.Sync) bool { return s.Listed(poolsResource, namespacesResource) }

// mayPlan reports whether the blocks, the requests and the Node are known. Nothing is requested before.
func mayPlan(s *kubeapi.Sync) bool { return s.Listed(blocksResource, requestsResource, nodesResource) }

// forget removes deleted pools that are no longer used on this node.
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

// expire ends the cooling of addresses whose cooling period has passed.
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

// restore stores a lease from a record, whether or not the node has its block yet.
func (n *holdings) restore(req source.Request, lease source.Lease, now time.Time) error {
	if len(lease.Addrs()) == 0 {
		return errors.New("the lease has no address")
	}
	if _, ok := n.leases.byKey[req.Key]; ok {
		return errors.New("the attachment already has a lease")
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

// keep stores a lease.
func (n *holdings) keep(key attachment.Key, h hold) {
	n.leases.add(key, h)
	if h.pod.UID != "" && h.Pool != "" && !mayChoose(n.sync) {
		n.pools.chosen[interfaceOf(key, h.pod)] = h.Pool
	}
}

// restoreCooling stores since when an address has been cooling, and with it the other address of its pair. If the
// cooling period has passed, the address is used after those with no known use. Without its block, only an address that
// is still cooling matters.
func (n *holdings) restoreCooling(a netip.Addr, since, now time.Time) {
	if since.After(now) {
		since = now // the wall clock may have been set back: do not cool longer than a period
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

// admit queues a request, and serves it immediately if an address is free and no request waits before it. It fails
// immediately if the pod cannot use any pool.
func (n *holdings) admit(req source.Request, now time.Time) *addressqueue.Waiter {
	w := n.pools.undecided.Push(req)
	n.decide(w, now)
	return w
}

// decide moves a waiter to the queue of its pool, if the pool is known.
func (n *holdings) decide(w *addressqueue.Waiter, now time.Time) {
	name, final, why := n.pools.choose(w.Request.Pod, n.policy.assumed(w.Request.Options))
	if before := n.pools.chosen[interfaceOf(w.Request.Key, w.Request.Pod)]; name == "" && !final && before != "" {
		name = before // selected earlier, while the API server was reachable
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

// decideAll re-evaluates waiters whose pool is unknown. Once namespaces and pools were listed, they determine the
// pool, instead of an earlier selection.
func (n *holdings) decideAll(now time.Time) {
	if mayChoose(n.sync) {
		clear(n.pools.chosen)
	}
	for _, w := range n.pools.undecided.All() {
		n.decide(w, now)
	}
}

// serve assigns addresses of a pool in the order of arrival while any are free. It is the only place that assigns addresses.
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

// release ends a lease; its addresses start to cool.
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
	n.serve(s, now) // without a cooling period the address is free immediately
	return true
}

// cancel ends a lease whose addresses no pod ever used.
func (n *holdings) cancel(key attachment.Key, now time.Time) bool {
	h, ok := n.leases.drop(key)
	if ok && h.allocatedIn != "" {
		s := n.pools.byName[h.allocatedIn]
		s.alloc.Cancel(key)
		n.serve(s, now)
	}
	return ok
}

// setBlock stores a block that this node has according to the API server (listed) or the file.
func (n *holdings) setBlock(f blockFacts, listed bool, now time.Time) {
	h, ok := n.blocks.byName[f.name]
	if ok && !h.same(f) {
		n.removeBlock(f.name, now)
		ok = false
	}
	if !ok {
		h = &heldBlock{blockFacts: f, listed: listed, changed: n.refresh}
		n.blocks.byName[f.name] = h
		n.addToAllocator(h, now)
		return
	}
	sameWithheld := slices.Equal(h.withheld, f.withheld)
	if h.found(f, listed); !sameWithheld {
		n.withhold(h)
	}
}

// addToAllocator adds a block's addresses to its pool's allocator, first those that are used or cooling. It adds
// none of a block that has addresses of another block.
func (n *holdings) addToAllocator(h *heldBlock, now time.Time) {
	if n.blocks.findConflict(h); h.conflict != "" {
		return
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
	n.refresh(h)
}

// refresh tells the allocator whether a block's addresses may be assigned. It is called after each transition of the block.
func (n *holdings) refresh(h *heldBlock) {
	if h.conflict != "" {
		return
	}
	n.pools.get(h.pool).alloc.SetReady(h.name, h.serves())
	n.usable = n.usable || h.serves()
}

// loseBlock notes that the API server no longer has a block, and returns the number of pods with addresses of it. Normally
// there are none. If there are, the block stays for these pods.
func (n *holdings) loseBlock(name string, now time.Time) (pods int) {
	h, ok := n.blocks.byName[name]
	if !ok {
		return 0
	}
	if pods = n.pools.usedIn(h); pods > 0 {
		h.lose()
		return pods
	}
	n.removeBlock(name, now)
	return 0
}

// removeBlock removes a block. Its leases and cooling addresses are kept.
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
		}
	}
}

// dropFromAllocator removes a block's addresses from its pool's allocator.
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

// review updates since when blocks have been empty, withdraws those that are deleted and empty, and removes lost ones that
// are no longer used.
func (n *holdings) review(now time.Time) {
	for name, h := range n.blocks.byName {
		busy := 0
		if h.conflict == "" {
			c := n.pools.counts(h)
			busy = c.Used + c.Cooling + n.heldByOthers(h)
		}
		if busy == 0 && h.lost {
			n.removeBlock(name, now)
			continue
		}
		h.setBusy(busy > 0, now)
	}
}

// heldByOthers returns the number of addresses of a block that the node itself or other software on it has. The block
// stays: no other node may get them.
func (n *holdings) heldByOthers(h *heldBlock) (count int) {
	for _, a := range n.nodeHas {
		if _, ok := h.place(a); ok {
			if _, owner := h.ownerOf([]netip.Addr{a}); owner == "" {
				count++
			}
		}
	}
	return count
}

// each calls do with those blocks of a list that the node still has.
func (n *holdings) each(list []blockFacts, do func(*heldBlock)) {
	for _, b := range list {
		if h, ok := n.blocks.byName[b.name]; ok && h.same(b) {
			do(h)
		}
	}
}

// withhold withholds the addresses of a block that another object or the node itself uses. It returns those of the first
// family that no pod holds.
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
