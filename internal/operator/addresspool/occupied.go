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
	// maxNodeAddresses limits how many addresses a node can withhold from pods: its kubelet reports
	// them and may lie. Nodes have one or two of each family and type.
	maxNodeAddresses = 8
	// maxNamed is how many addresses a pool's condition lists.
	maxNamed = 5
)

// addressesEvery is the minimum interval between changes of a node's addresses: a change may
// cause as many block writes as the node has addresses.
const addressesEvery = 10 * time.Second

// Prefixes of the owners of withheld addresses; a name follows.
const (
	ownerNode     = "Node "
	ownerServices = "ServiceCIDR "
	ownerPool     = v1alpha1.WithheldByPool
)

// occupied tracks the addresses of Nodes and Services, and those that pools reserve. A change of one node costs
// work only for that node's addresses.
type occupied struct {
	mu       sync.Mutex                // guards the fields below
	nodes    map[string]nodeState      // by node name
	owners   map[netip.Addr][]string   // sorted node names
	sorted   []netip.Addr              // the keys of owners
	ranges   []ownedRange              // of Services
	unread   bool                      // whether the last attempt to read ranges failed
	reserved map[string][]netip.Prefix // by pool name
}

type nodeState struct {
	addresses []netip.Addr
	changed   time.Time
}

func newOccupied() *occupied {
	return &occupied{nodes: map[string]nodeState{}, owners: map[netip.Addr][]string{}, reserved: map[string][]netip.Prefix{}}
}

// set records a node's addresses, and returns those that were added or removed. o.mu is held.
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

// wait returns how long a node must wait before it may add these addresses. It may remove
// addresses at any time. o.mu is held.
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

// within returns the occupied addresses within some prefixes, those of Services first.
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

// reserve records which ranges a pool reserves, and reports whether they changed.
func (o *occupied) reserve(pool string, ranges []netip.Prefix) (changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.Equal(o.reserved[pool], ranges) {
		return false
	}
	o.reserved[pool] = ranges
	if len(ranges) == 0 {
		delete(o.reserved, pool)
	}
	return true
}

// reservedIn returns the ranges that a pool reserves within some prefixes.
func (o *occupied) reservedIn(pool string, prefixes []netip.Prefix) (out []ownedRange) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.reserved[pool] {
		if slices.ContainsFunc(prefixes, r.Overlaps) {
			out = append(out, ownedRange{Prefix: r, other: ownerPool + pool})
		}
	}
	return out
}

// withheldOf returns the addresses of a pool's block that are occupied or reserved.
func (o *occupied) withheldOf(pool string, b block.Block) []v1alpha1.WithheldAddresses {
	var prefixes []netip.Prefix
	for _, p := range [...]netip.Prefix{b.IPv4, b.IPv6} {
		if p.IsValid() {
			prefixes = append(prefixes, p)
		}
	}
	return withheld(b, append(o.reservedIn(pool, prefixes), o.within(prefixes...)...))
}

// services returns the address ranges of Services.
func (o *occupied) services() []ownedRange {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ranges
}

// nodeAddresses returns the first addresses of a Node to which other machines can send packets,
// without duplicates.
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

// reservedRanges returns the valid ranges that a pool reserves, in a fixed order and without duplicates: the shorter
// of two that overlap contains the other.
func reservedRanges(p *v1alpha1.AddressPool) (out []netip.Prefix) {
	for _, text := range p.Spec.Reserved {
		if c, err := netip.ParsePrefix(text); err == nil {
			out = append(out, c.Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	kept := out[:0]
	for _, c := range out {
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(c) {
			kept = append(kept, c)
		}
	}
	return kept
}

// serviceRanges returns the ranges from which the cluster's Services get their addresses.
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

// withheld returns the addresses of a block that are in use elsewhere. If they are too many to be
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

// hasRoom reports whether a block has an address left for a pod: some position in the block whose
// addresses, one of each family, are not withheld.
func hasRoom(b block.Block, out []v1alpha1.WithheldAddresses) bool {
	// Positions are compared as IPv6 prefixes: two CIDRs are disjoint, or one contains the other.
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

// placeOf returns the position of a CIDR within a block that has this many host bits.
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

// explain returns a condition's message about the withheld addresses of a pool, or "" if there are none.
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
