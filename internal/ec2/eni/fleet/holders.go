package fleet

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
)

// holders tracks which node of the fleet holds which address of a subnet, so that no two nodes get the same address,
// whatever EC2 returns. A fleet has millions of addresses, so each takes one entry of a map without strings.
type holders struct {
	mu      sync.Mutex // guards all below; never held during a call
	by      map[key]*holder
	held    map[string][]*holder            // by instance
	settled map[string]bool                 // instances that hold all of held, with none being released
	subnets map[string]uint32               // numbers of subnets, by ID
	singles map[uint32]map[*holder]struct{} // by subnet: those with single IPv6 addresses
}

// key is an address or prefix in a subnet. Different VPCs may use the same addresses.
type key struct {
	addr   [16]byte
	subnet uint32
	bits   uint8 // of an address in its own family's notation
	four   bool
}

// holder is an ENI with its addresses and prefixes. The lists belong to the published inventory, which never changes.
type holder struct {
	instance, eni string
	subnet        uint32
	own           netip.Addr
	four, six     []netip.Addr
	prefixes      []netip.Prefix
	prefixes6     []netip.Prefix
}

func newHolders() *holders {
	return &holders{by: map[key]*holder{}, held: map[string][]*holder{}, settled: map[string]bool{}, subnets: map[string]uint32{}, singles: map[uint32]map[*holder]struct{}{}}
}

func keyOf(subnet uint32, p netip.Prefix) key {
	return key{p.Addr().As16(), subnet, uint8(p.Bits()), p.Addr().Is4()}
}

// each calls do for every address and prefix of an ENI.
func (h *holder) each(do func(netip.Prefix)) {
	if h.own.IsValid() {
		do(cloud.HostPrefix(h.own))
	}
	for _, list := range [...][]netip.Addr{h.four, h.six} {
		for _, a := range list {
			do(cloud.HostPrefix(a))
		}
	}
	for _, list := range [...][]netip.Prefix{h.prefixes, h.prefixes6} {
		for _, p := range list {
			do(p)
		}
	}
}

// subnet returns the number of a subnet. h.mu is held.
func (h *holders) subnet(id string) uint32 {
	n, ok := h.subnets[id]
	if !ok {
		n = uint32(len(h.subnets))
		h.subnets[id] = n
	}
	return n
}

// has reports whether each calls its function with p.
func (h *holder) has(p netip.Prefix) bool {
	if a := p.Addr(); p.IsSingleIP() && (a == h.own || slices.Contains(h.four, a) || slices.Contains(h.six, a)) {
		return true
	}
	return slices.Contains(h.prefixes, p) || slices.Contains(h.prefixes6, p)
}

// sameENI reports whether two holders are the same ENI.
func (h *holder) sameENI(o *holder) bool { return h.eni == o.eni && h.subnet == o.subnet }

// same reports whether two holders are the same ENI and have the same addresses and prefixes.
func (h *holder) same(o *holder) bool {
	return h.sameENI(o) && h.own == o.own && slices.Equal(h.four, o.four) && slices.Equal(h.six, o.six) &&
		slices.Equal(h.prefixes, o.prefixes) && slices.Equal(h.prefixes6, o.prefixes6)
}

// set records the addresses of an instance, except those being released, which another node may already hold. It is
// called for each publication, of which most repeat the one before.
func (h *holders) set(inv eni.Inventory) {
	leaving := map[netip.Prefix]bool{}
	for _, r := range inv.Releasing {
		leaving[r.Prefix] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := make([]*holder, 0, len(inv.ENIs))
	for i := range inv.ENIs {
		e := &inv.ENIs[i]
		now = append(now, &holder{inv.InstanceID, e.ID, h.subnet(e.SubnetID), e.PrimaryIPv4, e.Addresses, e.IPv6, e.Prefixes, e.IPv6Prefixes})
	}
	if len(leaving) == 0 && h.settled[inv.InstanceID] {
		switch held := h.held[inv.InstanceID]; {
		case slices.EqualFunc(now, held, (*holder).same):
			return
		case slices.EqualFunc(now, held, (*holder).sameENI):
			for i, of := range held {
				h.update(of, *now[i])
			}
			return
		}
	}
	h.forget(inv.InstanceID)
	if len(now) == 0 {
		return
	}
	h.held[inv.InstanceID] = now
	for _, of := range now {
		h.take(of, func(p netip.Prefix) bool { return leaving[p] })
	}
	if len(leaving) == 0 {
		h.settled[inv.InstanceID] = true
	}
}

// update changes the addresses of an ENI of an instance that holds all that it has. h.mu is held.
func (h *holders) update(of *holder, to holder) {
	if !of.same(&to) {
		h.release(of, to.has)
	}
	*of = to
	h.take(of, func(p netip.Prefix) bool { return h.by[keyOf(of.subnet, p)] == of })
}

// take records an ENI as the holder of its addresses, without those for which except is true. h.mu is held.
func (h *holders) take(of *holder, except func(netip.Prefix) bool) {
	of.each(func(p netip.Prefix) {
		if !p.IsValid() || except(p) {
			return
		}
		at := keyOf(of.subnet, p)
		if before := h.by[at]; before != nil && before.instance != of.instance {
			delete(h.settled, before.instance)
		}
		h.by[at] = of
	})
	if len(of.six) > 0 {
		if h.singles[of.subnet] == nil {
			h.singles[of.subnet] = map[*holder]struct{}{}
		}
		h.singles[of.subnet][of] = struct{}{}
	}
}

// drop removes the addresses of an instance.
func (h *holders) drop(instance string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(instance)
}

// forget is drop with h.mu held.
func (h *holders) forget(instance string) {
	for _, of := range h.held[instance] {
		h.release(of, func(netip.Prefix) bool { return false })
	}
	delete(h.held, instance)
	delete(h.settled, instance)
}

// release removes the addresses of an ENI, without those for which except is true. h.mu is held.
func (h *holders) release(of *holder, except func(netip.Prefix) bool) {
	of.each(func(p netip.Prefix) {
		if at := keyOf(of.subnet, p); !except(p) && h.by[at] == of {
			delete(h.by, at)
		}
	})
	delete(h.singles[of.subnet], of)
}

// other returns the ENI of another instance that holds part of an address or delegated prefix; empty if there is
// none.
func (h *holders) other(instance, subnet string, p netip.Prefix) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	in, known := h.subnets[subnet]
	if !known {
		return ""
	}
	for _, t := range overlapping(p) {
		if has := h.by[keyOf(in, t)]; has != nil && has.instance != instance {
			return has.eni
		}
	}
	if p.IsSingleIP() || p.Addr().Is4() {
		return ""
	}
	for has := range h.singles[in] { // rare: a subnet with both /80 prefixes and single addresses
		if has.instance != instance && slices.ContainsFunc(has.six, func(a netip.Addr) bool { return p.Contains(a) && h.by[keyOf(in, cloud.HostPrefix(a))] == has }) {
			return has.eni
		}
	}
	return ""
}

// overlapping returns the addresses and delegated prefixes that overlap p, which is an address or such a prefix.
func overlapping(p netip.Prefix) []netip.Prefix {
	prefix := cloud.PrefixAround(p.Addr())
	out := []netip.Prefix{p, prefix}
	if p != prefix || !p.Addr().Is4() { // an IPv6 prefix has too many addresses to list
		return out
	}
	for a := p.Addr(); p.Contains(a); a = a.Next() {
		out = append(out, cloud.HostPrefix(a))
	}
	return out
}

// holds reports whether an ENI is known to hold an address or prefix.
func (h *holders) holds(e cloud.ENI, p netip.Prefix) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	in, known := h.subnets[e.SubnetID]
	if !known {
		return false
	}
	has := h.by[keyOf(in, p)]
	return has != nil && has.eni == e.ID
}

// Publish implements Node. Published addresses are recorded as held by the node.
func (n *countedNode) Publish(ctx context.Context, inv eni.Inventory) error {
	n.holders.set(inv)
	return n.Node.Publish(ctx, inv)
}
