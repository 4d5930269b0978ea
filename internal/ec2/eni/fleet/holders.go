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
	held    map[string][]holder             // by instance; by and singles point into these lists, which never grow
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
	return &holders{by: map[key]*holder{}, held: map[string][]holder{}, settled: map[string]bool{}, subnets: map[string]uint32{}, singles: map[uint32]map[*holder]struct{}{}}
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

// beyond returns h with only the addresses and prefixes that o, another state of the same ENI, may lack: it drops what both lists
// have in common at either end. If one address was added to a sorted list, only that one remains.
func (h *holder) beyond(o *holder) holder {
	out := *h
	if h.own == o.own {
		out.own = netip.Addr{}
	}
	out.four, out.six = middle(h.four, o.four), middle(h.six, o.six)
	out.prefixes, out.prefixes6 = middle(h.prefixes, o.prefixes), middle(h.prefixes6, o.prefixes6)
	return out
}

// middle returns a without the elements that it shares with b at the start, and then at the end.
func middle[T comparable](a, b []T) []T {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return a
}

// set records the addresses of an instance, except those being released, which another node may already hold. It is
// called for each publication, of which most repeat the one before or add an address.
func (h *holders) set(inv eni.Inventory) {
	leaving := map[netip.Prefix]bool{}
	for _, r := range inv.Releasing {
		leaving[r.Prefix] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := make([]holder, 0, len(inv.ENIs))
	for i := range inv.ENIs {
		e := &inv.ENIs[i]
		now = append(now, holder{inv.InstanceID, e.ID, h.subnet(e.SubnetID), e.PrimaryIPv4, e.Addresses, e.IPv6, e.Prefixes, e.IPv6Prefixes})
	}
	held := h.held[inv.InstanceID]
	if len(leaving) == 0 && h.settled[inv.InstanceID] && slices.EqualFunc(now, held, func(a, b holder) bool { return a.sameENI(&b) }) {
		h.update(held, now)
		return
	}
	h.forget(inv.InstanceID)
	if len(now) == 0 {
		return
	}
	h.held[inv.InstanceID] = now
	h.settled[inv.InstanceID] = len(leaving) == 0
	for i := range now {
		h.take(&now[i], now[i], leaving)
	}
}

// update replaces the addresses of a settled instance whose ENIs are the same as before. It releases first, because an address
// may move between ENIs. h.mu is held.
func (h *holders) update(held, to []holder) {
	for i := range held {
		h.release(&held[i], held[i].beyond(&to[i]), to[i].has)
	}
	for i := range held {
		gained := to[i].beyond(&held[i])
		held[i] = to[i]
		h.take(&held[i], gained, nil)
	}
}

// take records an ENI as the holder of the addresses in some, except those in leaving. If another ENI held one, that ENI's
// instance is no longer settled. h.mu is held.
func (h *holders) take(of *holder, some holder, leaving map[netip.Prefix]bool) {
	some.each(func(p netip.Prefix) {
		if !p.IsValid() || leaving[p] {
			return
		}
		at := keyOf(of.subnet, p)
		if before := h.by[at]; before != nil && before != of {
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
	held := h.held[instance]
	for i := range held {
		h.release(&held[i], held[i], func(netip.Prefix) bool { return false })
	}
	delete(h.held, instance)
	delete(h.settled, instance)
}

// release undoes take for the addresses in some, without those for which except is true. It also removes the ENI from singles, to
// which take adds it again. h.mu is held.
func (h *holders) release(of *holder, some holder, except func(netip.Prefix) bool) {
	some.each(func(p netip.Prefix) {
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
