package datapath

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"

	"github.com/berthnet/berth/internal/datapath/rtnl"
)

// Maintenance of the sets that noPodChain looks at.

// own are the addresses, as prefixes of host length, and the prefixes of an ENI.
func (e Uplink) own() []netip.Prefix {
	var list []netip.Prefix
	for _, a := range e.Addresses {
		list = append(list, rtnl.HostPrefix(a))
	}
	return append(list, e.Prefixes...)
}

// setOwn puts an ENI's link and addresses into the sets where they are missing, and
// removes what the ENI had before and none has any more.
func (n *Node) setOwn(uplink, before Uplink, link int) (changed []string, err error) {
	had := before.own()
	return n.changeOwn(link, uplink.own(), func(p netip.Prefix) bool { return slices.Contains(had, p) })
}

// removeOwn removes from the sets what no ENI has that was set up.
func (n *Node) removeOwn() (changed []string, err error) {
	return n.changeOwn(0, nil, func(netip.Prefix) bool { return true })
}

// changeOwn adds to the sets what is missing in them, a link of 0 being none, and removes
// links that are gone and, where mayGo says so, what no ENI has.
func (n *Node) changeOwn(link int, want []netip.Prefix, mayGo func(netip.Prefix) bool) (changed []string, err error) {
	conn, err := n.nft()
	if err != nil {
		return nil, err
	}
	have, err := kernelOwn(conn)
	if err != nil {
		return nil, err
	}
	add, remove := diffOwn(have, want, n.knownUplinks(), mayGo)
	links, gone, err := n.diffUplinkLinks(conn, link)
	if err != nil {
		return nil, err
	}
	if len(add)+len(remove)+len(links)+len(gone) == 0 {
		return nil, nil
	}
	for _, s := range ownSets() {
		for _, c := range []struct {
			send func(*nftables.Set, []nftables.SetElement) error
			list []netip.Prefix
		}{{conn.SetDeleteElements, remove}, {conn.SetAddElements, add}} {
			for chunk := range slices.Chunk(s.elements(c.list), elementChunk) {
				if err := c.send(s.set, chunk); err != nil {
					return nil, fmt.Errorf("encode elements of %s: %w", s.set.Name, err)
				}
			}
		}
	}
	if err := conn.SetDeleteElements(uplinkLinkSet(), gone); err != nil {
		return nil, fmt.Errorf("encode links of ENIs: %w", err)
	}
	if err := conn.SetAddElements(uplinkLinkSet(), links); err != nil {
		return nil, fmt.Errorf("encode links of ENIs: %w", err)
	}
	if err := conn.Flush(); err != nil {
		return nil, fmt.Errorf("update nftables sets of the node's addresses (%d added, %d removed): %w", len(add), len(remove), err)
	}
	return []string{fmt.Sprintf("%d added and %d removed of the node's addresses", len(add), len(remove))}, nil
}

// diffOwn compares what the sets have with what they want. An address that moved to
// another ENI stays.
func diffOwn(have, want []netip.Prefix, uplinks []Uplink, mayGo func(netip.Prefix) bool) (add, remove []netip.Prefix) {
	there, owned := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, e := range uplinks {
		for _, p := range e.own() {
			owned[p] = true
		}
	}
	for _, p := range have {
		there[p] = true
		if !owned[p] && mayGo(p) {
			remove = append(remove, p)
		}
	}
	for _, p := range want {
		if !there[p] {
			there[p] = true // once, if it is there twice
			add = append(add, p)
		}
	}
	return add, remove
}

// elements are those of a list that belong into the set.
func (s ownSet) elements(list []netip.Prefix) (out []nftables.SetElement) {
	for _, p := range list {
		if rtnl.FamilyOf(p.Addr()) == s.family && (p.Bits() == s.bits || s.bits == 0 && p.IsSingleIP()) {
			out = append(out, nftables.SetElement{Key: p.Addr().AsSlice()})
		}
	}
	return out
}

// kernelOwn reads the sets of addresses.
func kernelOwn(conn *nftables.Conn) (list []netip.Prefix, err error) {
	for _, s := range ownSets() {
		elements, err := elementsThere(conn, s.set)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			if addr, ok := netip.AddrFromSlice(e.Key); ok {
				bits := s.bits
				if bits == 0 {
					bits = addr.BitLen()
				}
				list = append(list, netip.PrefixFrom(addr, bits))
			}
		}
	}
	return list, nil
}

// elementsThere reads a set. There may be none, as in the table of a node whose
// addresses are routed, or of an earlier version.
func elementsThere(conn *nftables.Conn, set *nftables.Set) ([]nftables.SetElement, error) {
	elements, err := conn.GetSetElements(set)
	if err != nil && !rtnl.IsGone(err) {
		return nil, fmt.Errorf("read nftables set %s: %w", set.Name, err)
	}
	return elements, nil
}

// diffUplinkLinks tells whether a link is to be added to eni_links, and which of its
// links are gone: their indexes could come back for another's.
func (k *kernel) diffUplinkLinks(conn *nftables.Conn, link int) (add, gone []nftables.SetElement, err error) {
	set := uplinkLinkSet()
	have, err := elementsThere(conn, set)
	if err != nil {
		return nil, nil, err
	}
	there := link == 0
	for _, e := range have {
		index := int(binaryutil.NativeEndian.Uint32(e.Key))
		there = there || index == link
		if _, err := k.slow.LinkByIndex(index); rtnl.IsNoLink(err) {
			gone = append(gone, nftables.SetElement{Key: e.Key})
		}
	}
	if !there {
		add = append(add, nftables.SetElement{Key: word(uint32(link))})
	}
	return add, gone, nil
}
