package datapath

import (
	"cmp"
	"errors"
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

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// uplinkEntries is the content of the ENI maps: an uplink's number by source address or prefix. A prefix of full
// length is an address.
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

// uplinkState is the part of the nftables table that depends on ENIs.
type uplinkState struct {
	entries uplinkEntries // by pods' addresses
	own     uplinkEntries // by the addresses of ENIs' links
}

func (s uplinkState) numbers() []int {
	list := slices.AppendSeq(slices.Collect(maps.Values(s.entries)), maps.Values(s.own))
	slices.Sort(list)
	return slices.Compact(list)
}

// add queues the addition of all entries to a new table.
func (s uplinkState) add(conn *nftables.Conn, markShift uint) error {
	for _, i := range s.numbers() {
		if err := conn.SetAddElements(noteMap(), note(markShift, i)); err != nil {
			return err
		}
	}
	if err := s.own.queue(ownMaps(), conn.SetAddElements); err != nil {
		return err
	}
	return s.entries.queue(uplinkMaps(), conn.SetAddElements)
}

// note returns the element of noteMap that leads from an ENI's number in a connection's mark to the ENI's chain.
func note(markShift uint, number int) []nftables.SetElement {
	return []nftables.SetElement{{Key: nft.Word(uint32(number) << markShift), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: uplinkChainName(number)}}}
}

// mapReader reads the maps of Berth's table. It reads a missing map, as after an upgrade, as empty.
type mapReader struct {
	conn *nftables.Conn
	maps []string // names
}

func newMapReader(conn *nftables.Conn) (mapReader, error) {
	r := mapReader{conn: conn}
	if there, err := (nft.Table{Family: nftables.TableFamilyINet, Name: NftTable}).There(conn); err != nil || !there {
		return r, err
	}
	sets, err := conn.GetSets(berthTable())
	if err != nil {
		return r, fmt.Errorf("list nftables sets: %w", err)
	}
	for _, s := range sets {
		if s.IsMap {
			r.maps = append(r.maps, s.Name)
		}
	}
	return r, nil
}

func (r mapReader) elements(set *nftables.Set) ([]nftables.SetElement, error) {
	if !slices.Contains(r.maps, set.Name) {
		return nil, nil
	}
	elements, err := r.conn.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("read nftables map %s: %w", set.Name, err)
	}
	return elements, nil
}

// entries returns the entries of the given maps.
func (r mapReader) entries(from []uplinkMap) (uplinkEntries, error) {
	m := uplinkEntries{}
	for _, em := range from {
		elements, err := r.elements(em.set)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			addr, ok := netip.AddrFromSlice(e.Key)
			if number, isUplink := verdictNumber(e.Val); ok && isUplink {
				m[netip.PrefixFrom(addr, cmp.Or(em.bits, addr.BitLen()))] = number
			}
		}
	}
	return m, nil
}

// verdictNumber parses the number in "goto eni_N" or "goto eni_N_note".
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
		digits, _ = strings.CutSuffix(digits, noteSuffix)
		index, err := strconv.Atoi(digits)
		return index, ok && err == nil
	}
	return 0, false
}

// queue queues the addition of entries to maps, or their removal.
func (m uplinkEntries) queue(to []uplinkMap, send func(*nftables.Set, []nftables.SetElement) error) error {
	for _, em := range to {
		var elements []nftables.SetElement
		for _, p := range slices.SortedFunc(maps.Keys(m), func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }) {
			if rtnl.FamilyOf(p.Addr()) == em.family && (em.bits == p.Bits() || em.bits == 0 && p.IsSingleIP()) {
				elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice(),
					VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: uplinkChainName(m[p]) + em.suffix}})
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

// setMap makes the maps lead exactly the ENI's addresses to its chain. An address that led to another ENI is moved
// in one transaction.
func (e secondaryENI) setMap(tag string) (changed []string, err error) {
	conn, err := e.nft()
	if err != nil {
		return nil, err
	}
	table := nft.Table{Family: nftables.TableFamilyINet, Name: NftTable, Tag: tag}
	for _, chain := range uplinkChains(e.vpc.MarkShift, e.Number) {
		if table.Has(conn, chain) {
			continue
		}
		table.Refill(conn, chain)
		changed = append(changed, "nftables chain "+chain.Name)
	}
	reader, err := newMapReader(conn)
	if err != nil {
		return nil, err
	}
	notes, err := reader.notes(e.Number)
	if err != nil {
		return nil, err
	}
	if len(notes) == 0 {
		changed = append(changed, "nftables map "+noteMap().Name)
		if err := conn.SetAddElements(noteMap(), note(e.vpc.MarkShift, e.Number)); err != nil {
			return nil, fmt.Errorf("encode map entries: %w", err)
		}
	}
	added, removed := 0, 0
	for _, of := range []struct {
		maps []uplinkMap
		want uplinkEntries
	}{{uplinkMaps(), e.entries()}, {ownMaps(), e.own(e.vpc)}} {
		have, err := reader.entries(of.maps)
		if err != nil {
			return nil, err
		}
		add, remove := diffEntries(of.want, have, e.Number)
		if err := errors.Join(remove.queue(of.maps, conn.SetDeleteElements), add.queue(of.maps, conn.SetAddElements)); err != nil {
			return nil, fmt.Errorf("encode map entries: %w", err)
		}
		added, removed = added+len(add), removed+len(remove)
	}
	if added+removed+len(changed) == 0 {
		return nil, nil
	}
	if err := conn.Flush(); err != nil {
		return nil, fmt.Errorf("update nftables maps (%d added, %d removed): %w", added, removed, err)
	}
	if added+removed > 0 {
		changed = append(changed, fmt.Sprintf("map entries: %d added and %d removed", added, removed))
	}
	return changed, nil
}

// diffEntries compares the desired entries of one ENI with the maps.
func diffEntries(want, have uplinkEntries, number int) (add, remove uplinkEntries) {
	add, remove = uplinkEntries{}, uplinkEntries{}
	for p, index := range have {
		desired := want[p] != 0
		if desired && index != number || !desired && index == number {
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

// clearUplinkMap removes an ENI's map entries and its chains.
func (k *kernel) clearUplinkMap(number int) error {
	conn, err := k.nft()
	if err != nil {
		return err
	}
	reader, err := newMapReader(conn)
	if err != nil {
		return err
	}
	for _, of := range [][]uplinkMap{uplinkMaps(), ownMaps()} {
		have, err := reader.entries(of)
		if err != nil {
			return err
		}
		_, remove := diffEntries(nil, have, number)
		if err := remove.queue(of, conn.SetDeleteElements); err != nil {
			return fmt.Errorf("encode map entries: %w", err)
		}
	}
	notes, err := reader.notes(number)
	if err != nil {
		return err
	}
	if len(notes) > 0 {
		if err := conn.SetDeleteElements(noteMap(), notes); err != nil {
			return fmt.Errorf("encode map entries: %w", err)
		}
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	for _, ch := range chains {
		if ch.Table.Name == NftTable && strings.TrimSuffix(ch.Name, noteSuffix) == uplinkChainName(number) {
			conn.FlushChain(ch)
			conn.DelChain(ch)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("remove ENI %d from nftables: %w", number, err)
	}
	return nil
}

// notes returns the elements of noteMap that lead to an ENI's chain.
func (r mapReader) notes(number int) (list []nftables.SetElement, err error) {
	elements, err := r.elements(noteMap())
	for _, e := range elements {
		if i, ok := verdictNumber(e.Val); ok && i == number {
			list = append(list, nftables.SetElement{Key: e.Key, VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: uplinkChainName(number)}})
		}
	}
	return list, err
}
