package pool

import (
	"net/netip"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/node/attachment"
)

// The operator says which addresses of a block Nodes and Services have. None of these
// is handed out; a pod that has one keeps it, and is told.

// withheldRange is addresses of a block, and who has them.
type withheldRange struct {
	netip.Prefix
	owner string
}

// readWithheld takes what makes sense of a block.
func readWithheld(list []v1alpha1.WithheldAddresses) (out []withheldRange) {
	for _, w := range list {
		if p, err := netip.ParsePrefix(w.CIDR); err == nil {
			out = append(out, withheldRange{p.Masked(), w.Owner})
		}
	}
	return out
}

// withheldPlaces are the addresses of the first family that are not to be handed out,
// as they or those at their place of the second are others'.
func (b blockFacts) withheldPlaces() (out []netip.Addr) {
	for _, w := range b.withheld {
		first, ok := b.place(w.Addr())
		if !ok {
			continue
		}
		bits := max(first.BitLen()-(w.Addr().BitLen()-w.Bits()), b.first.Bits())
		for p := netip.PrefixFrom(first, bits); p.Contains(first); first = first.Next() {
			out = append(out, first)
		}
	}
	return out
}

// ownerOf is who else has one of some addresses.
func (b blockFacts) ownerOf(addrs []netip.Addr) (addr netip.Addr, owner string) {
	for _, a := range addrs {
		for _, w := range b.withheld {
			if w.Contains(a) {
				return a, w.owner
			}
		}
	}
	return netip.Addr{}, ""
}

// withhold keeps what others, or the node itself, have of a block from being handed out, and returns
// the addresses of the first family that no pod holds.
func (l *ledger) withhold(h *heldBlock) []netip.Addr {
	if h.conflict != "" {
		return nil
	}
	places := h.withheldPlaces()
	for _, a := range l.nodeHas {
		if first, ok := h.place(a); ok {
			places = append(places, first)
		}
	}
	return l.pool(h.pool).alloc.Withhold(h.name, places)
}

// ofNode are the addresses of a pair that the node has itself.
func (l *ledger) ofNode(h *heldBlock, first netip.Addr) (out []netip.Addr) {
	for _, a := range h.addresses(first) {
		if slices.Contains(l.nodeHas, a) {
			out = append(out, a)
		}
	}
	return out
}

// conflict is a pod that has an address of others.
type conflict struct {
	pod    attachment.Pod
	ifName string
	addr   netip.Addr
	owner  string
}

// selfOwner is who an address of this node belongs to, as the operator says.
func (p policy) selfOwner() string { return "Node " + p.nodeName }

// conflicts are the pods that have got one since they were last asked for. Those that have an address
// that the kernel says to be the node's are the daemon's to tell.
func (l *ledger) conflicts(h *heldBlock) (out []conflict) {
	for key, lease := range l.leases {
		if lease.Block != h.name {
			continue
		}
		addr, owner := h.ownerOf(lease.Addrs())
		byDaemon := owner == l.selfOwner() && slices.Contains(l.nodeHas, addr)
		if owner != lease.toldOwner && owner != "" && !byDaemon {
			out = append(out, conflict{lease.pod, key.IfName, addr, owner})
		}
		lease.toldOwner = owner
		l.leases[key] = lease
	}
	return out
}
