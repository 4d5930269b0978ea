package pool

import (
	"maps"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

// Snapshot implements source.Source. Of a dual-stack pair the address of the
// first family stands for both, and of a block of more than 256 addresses only
// those appear that were ever used; the detail's pools count them all.
func (s *Source) Snapshot() source.Snapshot {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	n := s.state.holdings
	v := n.at(s.state.clock.Now())
	out := source.Snapshot{Waiting: n.pools.undecided.Len(), LastError: v.lastError(), Conditions: n.blocks.conditions()}
	var d detail
	for _, name := range slices.Sorted(maps.Keys(n.pools.byName)) {
		p := n.pools.byName[name]
		out.Waiting += p.queue.Len()
		d.pools = append(d.pools, v.poolInfo(p))
		for a := range p.alloc.Addresses() {
			out.Addresses = append(out.Addresses, n.blocks.addressInfo(a))
		}
	}
	out.Addresses = append(out.Addresses, n.leases.outside()...)
	slices.SortFunc(out.Addresses, func(x, y source.AddressInfo) int { return x.Addr.Compare(y.Addr) })
	for _, name := range n.blocks.names() {
		b := describeBlock(n.blocks.byName[name])
		b.Withheld = n.pools.counts(n.blocks.byName[name]).Withdrawn
		d.blocks = append(d.blocks, b)
		out.Groups = append(out.Groups, source.Group{Name: b.Name, Capacity: b.Capacity})
	}
	d.addresses = out.Addresses
	out.Count, out.Detail = d.count(), d
	return out
}

// describeBlock leaves the counts to the detail.
func describeBlock(h *heldBlock) introspect.Block {
	g := introspect.Block{Name: h.name, Pool: h.pool, Prefixes: h.prefixes(), Ready: h.serves(), Capacity: sizeOf(h.first)}
	switch {
	case h.unroutable:
		g.Reason = h.down
	case g.Ready:
	case h.lost:
		g.Reason = "it was taken from this node; it stays for the pods that have addresses of it"
	case h.conflict != "":
		g.Reason = "block " + h.conflict + " of this node has the same addresses"
	case h.deleted():
		g.Reason = "it is being deleted"
	case h.returning:
		g.Reason = "it is empty and goes back"
	case h.down != "":
		g.Reason = h.down
	default:
		g.Reason = "its routes are not there yet"
	}
	return g
}

func (b *blocks) addressInfo(v ipam.AddressView[attachment.Key]) source.AddressInfo {
	of := introspect.Origin{Block: v.Group}
	if h := b.byName[v.Group]; h != nil {
		of.Pool, v.Withdrawn = h.pool, v.Withdrawn || h.ends()
	}
	return source.Info(v, of)
}

// poolInfo counts what this node has of a pool.
func (d view) poolInfo(s *poolState) poolInfo {
	p := poolInfo{Pool: introspect.Pool{Name: s.name, Waiting: s.queue.Len()}}
	for _, h := range d.n.blocks.byName {
		if h.pool != s.name {
			continue
		}
		p.Blocks++
		if h.deleted() {
			p.Draining++
		}
		c := d.n.pools.counts(h)
		p.Used += c.Used
		p.Cooling += c.Cooling
		p.retired += c.Withdrawn
		switch {
		case h.serves():
			p.Free += c.Free
		case h.ends():
			p.retired += c.Free
		default:
			p.notReady += c.Free
		}
	}
	for _, r := range d.n.requests.of(s.name) {
		if d.n.blocks.answered(r) {
			continue
		}
		p.Requests++
		if r.failed != "" {
			p.Failed = r.failed
			p.Exhausted = p.Exhausted || r.failed == v1alpha1.ReasonPoolExhausted
		}
	}
	if s.deleting {
		p.Failed = v1alpha1.ReasonPoolDeleted
	}
	return p
}
