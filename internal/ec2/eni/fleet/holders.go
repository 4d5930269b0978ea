package fleet

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
)

// holders tell which node of the fleet has which address of a subnet, so that no
// two are given the same, whatever EC2 answers.
type holders struct {
	mu   sync.Mutex       // guards all below; memory only
	by   map[key]holder   // who has what
	held map[string][]key // by instance
}

// key is an address or prefix of a subnet. VPCs may have the same addresses.
type key struct {
	subnet string
	thing  netip.Prefix
}

type holder struct{ instance, eni string }

func newHolders() *holders {
	return &holders{by: map[key]holder{}, held: map[string][]key{}}
}

// set takes what an instance has. What it is giving back may be another's already.
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

// drop forgets what an instance has.
func (h *holders) drop(instance string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(instance)
}

// forget returns drop with h.mu held.
func (h *holders) forget(instance string) {
	for _, at := range h.held[instance] {
		if h.by[at].instance == instance {
			delete(h.by, at)
		}
	}
	delete(h.held, instance)
}

// other names the ENI of another instance that has some of an address or delegated
// prefix; empty: none has.
func (h *holders) other(instance, subnet string, thing netip.Prefix) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range overlapping(thing) {
		if has, ok := h.by[key{subnet, t}]; ok && has.instance != instance {
			return has.eni
		}
	}
	if thing.IsSingleIP() || thing.Addr().Is4() {
		return ""
	}
	for at, has := range h.by { // rare: an ENI gets a /80 once
		if at.subnet == subnet && has.instance != instance && thing.Overlaps(at.thing) {
			return has.eni
		}
	}
	return ""
}

// overlapping returns the addresses and delegated prefixes that have some of thing,
// which is one of them.
func overlapping(thing netip.Prefix) []netip.Prefix {
	prefix := cloud.PrefixAround(thing.Addr())
	out := []netip.Prefix{thing, prefix}
	if thing != prefix || !thing.Addr().Is4() { // an IPv6 prefix has too many addresses to list
		return out
	}
	for a := thing.Addr(); thing.Contains(a); a = a.Next() {
		out = append(out, cloud.HostPrefix(a))
	}
	return out
}

// holds reports whether a node is known to have a thing by an ENI.
func (h *holders) holds(e cloud.ENI, thing netip.Prefix) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.by[key{e.SubnetID, thing}].eni == e.ID
}

// Publish implements Node: what is published is the node's own from then on.
func (n *countedNode) Publish(ctx context.Context, inv eni.Inventory) error {
	n.holders.set(inv)
	return n.Node.Publish(ctx, inv)
}
