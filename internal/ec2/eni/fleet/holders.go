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
	mu   sync.Mutex       // guards all below; never held during a call
	by   map[key]holder   // by address or prefix
	held map[string][]key // by instance
}

// key is an address or prefix in a subnet. Different VPCs may use the same addresses.
type key struct {
	subnet string
	prefix netip.Prefix
}

type holder struct{ instance, eni string }

func newHolders() *holders {
	return &holders{by: map[key]holder{}, held: map[string][]key{}}
}

// set records the addresses of an instance, except those being released, which another node may already hold.
func (h *holders) set(inv eni.Inventory) {
	leaving := map[netip.Prefix]bool{}
	for _, r := range inv.Releasing {
		leaving[r.Prefix] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(inv.InstanceID)
	for i := range inv.ENIs {
		e := &inv.ENIs[i]
		own := cloud.HostPrefix(e.PrimaryIPv4)
		for _, t := range slices.Concat(cloud.HostPrefixes(e.Addresses), e.Prefixes, cloud.HostPrefixes(e.IPv6), e.IPv6Prefixes, []netip.Prefix{own}) {
			if at := (key{e.SubnetID, t}); t.IsValid() && !leaving[t] {
				h.by[at] = holder{inv.InstanceID, e.ID}
				h.held[inv.InstanceID] = append(h.held[inv.InstanceID], at)
			}
		}
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
	for _, at := range h.held[instance] {
		if h.by[at].instance == instance {
			delete(h.by, at)
		}
	}
	delete(h.held, instance)
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
