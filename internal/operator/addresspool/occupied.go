package addresspool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
)

const (
	// maxNodeAddresses is how many addresses a node keeps from pods at most: its
	// kubelet writes them, and may lie. Nodes have one or two of each family and type.
	maxNodeAddresses = 8
	// listed is how many addresses a pool's condition names.
	listed = 5
)

// nodeAddresses are the first addresses of a Node that other machines can send
// packets to, once each.
func nodeAddresses(n *corev1.Node) (out []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		addr, err := netip.ParseAddr(a.Address)
		if addr = addr.Unmap().WithZone(""); err == nil && !slices.Contains(out, addr) && len(out) < maxNodeAddresses {
			out = append(out, addr)
		}
	}
	return out
}

// serviceRanges are the ranges of which the cluster's Services have their addresses.
func serviceRanges(list *networkingv1.ServiceCIDRList) (out []ownedRange) {
	for i := range list.Items {
		o := &list.Items[i]
		for _, text := range o.Spec.CIDRs {
			if c, err := netip.ParsePrefix(text); err == nil {
				out = append(out, ownedRange{Prefix: c.Masked(), other: ownerServices + o.Name})
			}
		}
	}
	return out
}

// withheld are the addresses of a block that others have. A block of which too much
// is theirs to be listed is withheld as a whole.
func withheld(b block.Block, others []ownedRange) (out []v1alpha1.WithheldAddresses) {
	for _, o := range others {
		for _, c := range [...]netip.Prefix{b.IPv4, b.IPv6} {
			if !c.Overlaps(o.Prefix) {
				continue
			}
			if c.Bits() < o.Bits() {
				c = o.Prefix
			}
			out = append(out, v1alpha1.WithheldAddresses{CIDR: c.String(), Owner: o.other})
		}
	}
	if len(out) <= v1alpha1.MaxWithheld {
		return out
	}
	all := b.IPv4
	if !all.IsValid() {
		all = b.IPv6
	}
	return []v1alpha1.WithheldAddresses{{CIDR: all.String(), Owner: fmt.Sprintf("more than %d others", v1alpha1.MaxWithheld)}}
}

// hasRoom tells whether a block has a place at which no address is withheld.
func hasRoom(b block.Block, out []v1alpha1.WithheldAddresses) bool {
	// Places are counted as those of an IPv6 prefix: of CIDRs, either one contains the
	// other or they are disjoint.
	var places []netip.Prefix
	size := 0
	for _, w := range out {
		c, err := netip.ParsePrefix(w.CIDR)
		if err != nil {
			continue
		}
		whole := b.IPv6
		if c.Addr().Is4() {
			whole = b.IPv4
		}
		host := c.Addr().BitLen() - whole.Bits()
		size = 1 << host
		places = append(places, placeOf(c, host))
	}
	slices.SortFunc(places, netip.Prefix.Compare)
	taken, last := 0, netip.Prefix{}
	for _, p := range places {
		if !last.IsValid() || !last.Overlaps(p) {
			taken, last = taken+1<<(128-p.Bits()), p
		}
	}
	return taken == 0 || taken < size
}

// placeOf is where addresses are in a block with so many host bits.
func placeOf(c netip.Prefix, host int) netip.Prefix {
	a := c.Addr().As16()
	for i := range a {
		if keep := host - 8*(len(a)-1-i); keep <= 0 {
			a[i] = 0
		} else if keep < 8 {
			a[i] &= 1<<keep - 1
		}
	}
	return netip.PrefixFrom(netip.AddrFrom16(a), 128-(c.Addr().BitLen()-c.Bits()))
}

// explain tells a person which addresses of a pool are withheld; empty: none.
func explain(others []ownedRange) string {
	if len(others) == 0 {
		return ""
	}
	var texts []string
	for _, o := range others[:min(len(others), listed)] {
		texts = append(texts, o.String())
	}
	if more := len(others) - listed; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return "no pod gets " + strings.Join(texts, ", ") + ": give the pool subnets that nothing else has addresses of"
}
