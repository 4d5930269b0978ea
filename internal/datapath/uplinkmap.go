package datapath

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath/nft"
	"github.com/berthnet/berth/internal/datapath/rtnl"
)

// uplinkEntries is the content of the ENI maps: an uplink's number by source address
// or prefix. A prefix of host length is an address.
type uplinkEntries map[netip.Prefix]int

func (e Uplink) entries() uplinkEntries {
	m := uplinkEntries{}
	for _, a := range e.Addresses {
		m[rtnl.HostPrefix(a)] = e.Number
	}
	for _, p := range e.Prefixes {
		m[p] = e.Number
	}
	return m
}

// uplinkState is what the nftables table has of ENIs.
type uplinkState struct {
	entries uplinkEntries
	own     ownAddresses // nil: of no VPC
}

func (s uplinkState) numbers() []int {
	list := slices.AppendSeq(slices.Collect(maps.Values(s.entries)), maps.Values(s.own))
	slices.Sort(list)
	return slices.Compact(list)
}

// kernelEntries reads the ENI maps; an absent table has no entries.
func kernelEntries(conn *nftables.Conn) (uplinkEntries, error) {
	if there, err := hasTable(conn, nftables.TableFamilyINet); err != nil || !there {
		return uplinkEntries{}, err
	}
	sets, err := conn.GetSets(berthTable())
	if err != nil {
		return nil, fmt.Errorf("list nftables sets: %w", err)
	}
	m := uplinkEntries{}
	for _, em := range uplinkMaps() {
		if !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == em.set.Name && s.IsMap }) {
			continue
		}
		elements, err := conn.GetSetElements(em.set)
		if err != nil {
			return nil, fmt.Errorf("read nftables map %s: %w", em.set.Name, err)
		}
		for _, e := range elements {
			addr, ok := netip.AddrFromSlice(e.Key)
			number, isUplink := verdictNumber(e.Val)
			if !ok || !isUplink {
				continue
			}
			bits := em.bits
			if bits == 0 {
				bits = addr.BitLen()
			}
			m[netip.PrefixFrom(addr, bits)] = number
		}
	}
	return m, nil
}

// verdictNumber reads the number off "goto eni_N".
func verdictNumber(val []byte) (int, bool) {
	attrs, err := netlink.UnmarshalAttributes(val)
	if err != nil {
		return 0, false
	}
	for _, a := range attrs {
		if a.Type != unix.NFTA_VERDICT_CHAIN {
			continue
		}
		digits, ok := strings.CutPrefix(strings.TrimRight(string(a.Data), "\x00"), "eni_")
		index, err := strconv.Atoi(digits)
		return index, ok && err == nil
	}
	return 0, false
}

// add queues the addition of entries, remove their removal.
func (m uplinkEntries) add(conn *nftables.Conn) error    { return m.queue(conn.SetAddElements) }
func (m uplinkEntries) remove(conn *nftables.Conn) error { return m.queue(conn.SetDeleteElements) }

func (m uplinkEntries) queue(send func(*nftables.Set, []nftables.SetElement) error) error {
	for _, em := range uplinkMaps() {
		var elements []nftables.SetElement
		for _, p := range slices.SortedFunc(maps.Keys(m), func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }) {
			if rtnl.FamilyOf(p.Addr()) == em.family && (em.bits == p.Bits() || em.bits == 0 && p.IsSingleIP()) {
				elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice(),
					VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: uplinkChainName(m[p])}})
			}
		}
		for chunk := range slices.Chunk(elements, nft.ElementChunk) {
			if err := send(em.set, chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

// setUplinkMap makes the maps lead exactly the ENI's addresses to its chain. An
// address that moved here from another ENI changes hands in one transaction.
func (n *Node) setUplinkMap(uplink Uplink, u VPC) (changed []string, err error) {
	conn, err := n.nft()
	if err != nil {
		return nil, err
	}
	have, err := kernelEntries(conn)
	if err != nil {
		return nil, err
	}
	add, remove := diffEntries(uplink.entries(), have, uplink.Number)
	own, err := n.kernelOwn()
	if err != nil {
		return nil, err
	}
	own.set(uplink.Number, uplink.own(u))
	for _, chain := range []chainSpec{uplinkChain(u.MarkShift, uplink.Number), ownChain(own)} {
		if n.queueChain(conn, chain) {
			changed = append(changed, "nftables chain "+chain.chain.Name)
		}
	}
	if len(add) == 0 && len(remove) == 0 && len(changed) == 0 {
		return nil, nil
	}
	if err := remove.remove(conn); err != nil {
		return nil, fmt.Errorf("encode map entries: %w", err)
	}
	if err := add.add(conn); err != nil {
		return nil, fmt.Errorf("encode map entries: %w", err)
	}
	if err := conn.Flush(); err != nil {
		return nil, fmt.Errorf("update nftables maps (%d added, %d removed): %w", len(add), len(remove), err)
	}
	if len(add)+len(remove) > 0 {
		changed = append(changed, fmt.Sprintf("%d added and %d removed map entries", len(add), len(remove)))
	}
	return changed, nil
}

// diffEntries compares what one ENI wants with the whole of the maps.
func diffEntries(want, have uplinkEntries, number int) (add, remove uplinkEntries) {
	add, remove = uplinkEntries{}, uplinkEntries{}
	for p, index := range have {
		wanted := want[p] != 0
		if wanted && index != number || !wanted && index == number {
			remove[p] = index
		}
	}
	for p := range want {
		if have[p] != number {
			add[p] = number
		}
	}
	return add, remove
}

// queueChain queues what a chain whose content is of ENIs lacks, if anything.
func (n *Node) queueChain(conn *nftables.Conn, chain chainSpec) (changed bool) {
	tag := n.set.Load().tag
	have, err := conn.GetRules(berthTable(), &chain.chain)
	if err == nil && slices.EqualFunc(have, chain.rules, func(r *nftables.Rule, w ruleSpec) bool { return bytes.Equal(r.UserData, w.userData(tag)) }) {
		return false
	}
	ch := chain.chain
	ch.Table = berthTable()
	conn.AddChain(&ch)
	conn.FlushChain(&ch)
	chain.addRules(conn, berthTable(), tag)
	return true
}

// clearUplinkMap removes an ENI's entries and its chain, and what leads to it.
func (n *Node) clearUplinkMap(number int) error {
	conn, err := n.nft()
	if err != nil {
		return err
	}
	have, err := kernelEntries(conn)
	if err != nil {
		return err
	}
	_, remove := diffEntries(nil, have, number)
	if len(have) > 0 || n.set.Load() != nil {
		own, err := n.kernelOwn()
		if err != nil {
			return err
		}
		own.set(number, nil)
		n.queueChain(conn, ownChain(own))
	}
	if err := remove.remove(conn); err != nil {
		return fmt.Errorf("encode map entries: %w", err)
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	for _, ch := range chains {
		if ch.Table.Name == NftTable && ch.Name == uplinkChainName(number) {
			conn.FlushChain(ch)
			conn.DelChain(ch)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("remove ENI %d from nftables: %w", number, err)
	}
	return nil
}
