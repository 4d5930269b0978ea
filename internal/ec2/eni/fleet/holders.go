package fleet

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
)

// holders knows which node of the fleet has which address of a subnet, so that no two nodes get the
// same address, whatever EC2 answers.
type holders struct {
	mu   sync.Mutex       // guards all below; never held during a call
	by   map[key]holder   // by address or prefix
	held map[string][]key // by instance
}

// key is an address or prefix of a subnet. VPCs may have the same addresses.
type key struct {
	subnet string
	prefix netip.Prefix
}

type holder struct{ instance, eni string }

func newHolders() *holders {
	return &holders{by: map[key]holder{}, held: map[string][]key{}}
}

// set takes the addresses of an instance. Those that it is releasing may already be another's.
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

// drop forgets the addresses of an instance.
func (h *holders) drop(instance string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(instance)
}

// forget is drop for a caller that holds h.mu.
func (h *holders) forget(instance string) {
	for _, at := range h.held[instance] {
		if h.by[at].instance == instance {
			delete(h.by, at)
		}
	}
	delete(h.held, instance)
}

// other returns the ENI of another instance that has part of an address or delegated prefix; empty:
// none has.
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
	for at, has := range h.by { // rare: an ENI gets a /80 once
		if at.subnet == subnet && has.instance != instance && p.Overlaps(at.prefix) {
			return has.eni
		}
	}
	return ""
}

// overlapping returns the addresses and delegated prefixes that overlap p, which is one of them.
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

// holds reports whether an ENI is known to have an address or prefix.
func (h *holders) holds(e cloud.ENI, p netip.Prefix) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.by[key{e.SubnetID, p}].eni == e.ID
}

// Publish implements Node: what is published is the node's own from then on.
func (n *countedNode) Publish(ctx context.Context, inv eni.Inventory) error {
	n.holders.set(inv)
	return n.Node.Publish(ctx, inv)
}
