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
// whatever EC2 returns.
type holders struct {
	mu   sync.Mutex         // guards all below; never held during a call
	by   map[key]holder     // by address or prefix
	held map[string][]claim // by instance
	lost map[string]bool    // instances of whose claims by has another holder
}

// key is an address or prefix in a subnet. Different VPCs may use the same addresses.
type key struct {
	subnet string
	prefix netip.Prefix
}

type holder struct{ instance, eni string }

// claim is an address or prefix of an instance's ENI.
type claim struct {
	key
	eni string
}

func newHolders() *holders {
	return &holders{by: map[key]holder{}, held: map[string][]claim{}, lost: map[string]bool{}}
}

// set records the addresses of an instance, except those being released, which another node may already hold. It is
// called for each publication, of which most repeat the one before.
func (h *holders) set(inv eni.Inventory) {
	claims := claimsOf(inv)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.lost[inv.InstanceID] && slices.Equal(claims, h.held[inv.InstanceID]) {
		return
	}
	h.forget(inv.InstanceID)
	if len(claims) == 0 {
		return
	}
	h.held[inv.InstanceID] = claims
	for _, c := range claims {
		if before, ok := h.by[c.key]; ok {
			h.lost[before.instance] = true
		}
		h.by[c.key] = holder{inv.InstanceID, c.eni}
	}
	delete(h.lost, inv.InstanceID) // an address of two of its own ENIs
}

// claimsOf returns the addresses of an inventory, except those being released.
func claimsOf(inv eni.Inventory) []claim {
	var leaving map[netip.Prefix]bool
	if len(inv.Releasing) > 0 {
		leaving = make(map[netip.Prefix]bool, len(inv.Releasing))
		for _, r := range inv.Releasing {
			leaving[r.Prefix] = true
		}
	}
	n := 0
	for i := range inv.ENIs {
		e := &inv.ENIs[i]
		n += len(e.Addresses) + len(e.Prefixes) + len(e.IPv6) + len(e.IPv6Prefixes) + 1
	}
	claims := make([]claim, 0, n)
	for i := range inv.ENIs {
		e := &inv.ENIs[i]
		add := func(p netip.Prefix) {
			if p.IsValid() && !leaving[p] {
				claims = append(claims, claim{key{e.SubnetID, p}, e.ID})
			}
		}
		for _, list := range [...][]netip.Addr{e.Addresses, e.IPv6, {e.PrimaryIPv4}} {
			for _, a := range list {
				add(cloud.HostPrefix(a))
			}
		}
		for _, list := range [...][]netip.Prefix{e.Prefixes, e.IPv6Prefixes} {
			for _, p := range list {
				add(p)
			}
		}
	}
	return claims
}

// drop removes the addresses of an instance.
func (h *holders) drop(instance string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(instance)
}

// forget is drop with h.mu held.
func (h *holders) forget(instance string) {
	for _, c := range h.held[instance] {
		if h.by[c.key].instance == instance {
			delete(h.by, c.key)
		}
	}
	delete(h.held, instance)
	delete(h.lost, instance)
}

// other returns the ENI of another instance that holds part of an address or delegated prefix; empty if there is
// none.
func (h *holders) other(instance, subnet string, p netip.Prefix) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range overlapping(p) {
		if has, ok := h.by[key{subnet, t}]; ok && has.instance != instance {
			return has.eni
		}
	}
	if p.IsSingleIP() || p.Addr().Is4() {
		return ""
	}
	for at, has := range h.by { // rare: an ENI gets a single /80
		if at.subnet == subnet && has.instance != instance && p.Overlaps(at.prefix) {
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
	return h.by[key{e.SubnetID, p}].eni == e.ID
}

// Publish implements Node. Published addresses are recorded as held by the node.
func (n *countedNode) Publish(ctx context.Context, inv eni.Inventory) error {
	n.holders.set(inv)
	return n.Node.Publish(ctx, inv)
}
