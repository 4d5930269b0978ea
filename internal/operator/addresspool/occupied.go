package addresspool

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
)

const (
	// maxNodeAddresses is how many addresses a node keeps from pods at most: the node's
	// kubelet writes them, and may lie. Nodes have one or two of each family and type.
	maxNodeAddresses = 8
	// maxNamed is how many addresses a pool's condition names.
	maxNamed = 5
)

// addressesEvery is how often the addresses of a node may change at most: a change may lead
// to as many writes of blocks as the node has addresses.
const addressesEvery = 10 * time.Second

// The owners of withheld addresses begin with these, and a name follows.
const (
	ownerNode     = "Node "
	ownerServices = "ServiceCIDR "
)

// occupied are the addresses that Nodes and Services have. A change of one node costs
// work for its own addresses alone.
type occupied struct {
	mu     sync.Mutex              // guards all below
	nodes  map[string]nodeState    // by name
	owners map[netip.Addr][]string // names of nodes, in order
	sorted []netip.Addr            // the keys of owners
	ranges []ownedRange            // of Services
	unread bool                    // the last attempt to read ranges failed
}

type nodeState struct {
	addresses []netip.Addr
	changed   time.Time
}

func newOccupied() *occupied {
	return &occupied{nodes: map[string]nodeState{}, owners: map[netip.Addr][]string{}}
}

// set takes a node's addresses, and returns those that are new or gone. o.mu is held.
func (o *occupied) set(node string, addresses []netip.Addr, now time.Time) (changed []netip.Addr) {
	before := o.nodes[node].addresses
	for _, a := range before {
		if !slices.Contains(addresses, a) {
			o.remove(node, a)
			changed = append(changed, a)
		}
	}
	for _, a := range addresses {
		if !slices.Contains(before, a) {
			o.add(node, a)
			changed = append(changed, a)
		}
	}
	o.nodes[node] = nodeState{addresses, now}
	return changed
}

// wait is how long it is until a node may have these addresses. It may lose addresses at
// any time. o.mu is held.
func (o *occupied) wait(node string, addresses []netip.Addr, now time.Time) time.Duration {
	had := o.nodes[node]
	if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !slices.Contains(had.addresses, a) }) {
		return 0
	}
	return max(0, had.changed.Add(addressesEvery).Sub(now))
}

func (o *occupied) add(node string, a netip.Addr) {
	names := o.owners[a]
	if len(names) == 0 {
		i, _ := slices.BinarySearchFunc(o.sorted, a, netip.Addr.Compare)
		o.sorted = slices.Insert(o.sorted, i, a)
	}
	i, _ := slices.BinarySearch(names, node)
	o.owners[a] = slices.Insert(names, i, node)
}

func (o *occupied) remove(node string, a netip.Addr) {
	names := slices.DeleteFunc(o.owners[a], func(n string) bool { return n == node })
	if o.owners[a] = names; len(names) > 0 {
		return
	}
	delete(o.owners, a)
	if i, ok := slices.BinarySearchFunc(o.sorted, a, netip.Addr.Compare); ok {
		o.sorted = slices.Delete(o.sorted, i, i+1)
	}
}

// within are the occupied addresses in some prefixes, those of Services first.
func (o *occupied) within(prefixes ...netip.Prefix) (out []ownedRange) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.ranges {
		if slices.ContainsFunc(prefixes, r.Overlaps) {
			out = append(out, r)
		}
	}
	for _, p := range prefixes {
		first := sort.Search(len(o.sorted), func(i int) bool { return p.Addr().Compare(o.sorted[i]) <= 0 })
		for _, a := range o.sorted[first:] {
			if !p.Contains(a) {
				break
			}
			out = append(out, ownedRange{Prefix: netip.PrefixFrom(a, a.BitLen()), other: ownerNode + o.owners[a][0]})
		}
	}
	return out
}

// withheldOf are the addresses of a block that are occupied.
func (o *occupied) withheldOf(b block.Block) []v1alpha1.WithheldAddresses {
	var prefixes []netip.Prefix
	for _, p := range [...]netip.Prefix{b.IPv4, b.IPv6} {
		if p.IsValid() {
			prefixes = append(prefixes, p)
		}
	}
	return withheld(b, o.within(prefixes...))
}

// services are the ranges of Services.
func (o *occupied) services() []ownedRange {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ranges
}

// nodeAddresses are the first addresses of a Node to which other machines can send
// packets, without duplicates.
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

// withheld are the addresses of a block that others have. If they are too many to be
// listed, the whole block is withheld.
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

// hasRoom reports whether a pod can have an address of a block: some place in it has an address
// of each family that is not withheld.
func hasRoom(b block.Block, out []v1alpha1.WithheldAddresses) bool {
	// Places are compared as IPv6 prefixes: two CIDRs are disjoint, or one contains the other.
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

// placeOf is the place of addresses in a block with so many host bits.
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

// explain is a condition's message on which addresses of a pool are withheld; empty: none.
func explain(others []ownedRange) string {
	if len(others) == 0 {
		return ""
	}
	var texts []string
	for _, o := range others[:min(len(others), maxNamed)] {
		texts = append(texts, o.String())
	}
	if more := len(others) - maxNamed; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return "no pod gets " + strings.Join(texts, ", ") + ": give the pool subnets in which nothing else has addresses"
}

func piece(b *v1alpha1.AddressBlock) (out block.Block) {
	for _, c := range cidrs(b) {
		if c.Addr().Is4() {
			out.IPv4 = c
		} else {
			out.IPv6 = c
		}
	}
	return out
}
