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
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// elementChunk bounds the elements of one message: they share an attribute of
// at most 64 KiB.
const elementChunk = 256

func (n *Node) nft() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithNetNSFd(int(n.ns)))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// setTable makes Berth's table what the configuration says. It compares first
// and writes nothing when all is well; otherwise the whole table is replaced
// in one transaction, so no packet meets half a ruleset.
func (n *Node) setTable(c Config, primary string) (changed []string, err error) {
	conn, err := n.nft()
	if err != nil {
		return nil, err
	}
	entries := eniEntries{}
	if !c.pools() {
		if entries, err = n.eniEntries(conn); err != nil {
			return nil, err
		}
	}
	rs, err := buildRuleset(c, primary, entries.indexes())
	if err != nil {
		return nil, err
	}
	if rs.inKernel(conn) {
		return nil, nil
	}
	rs.replace(conn)
	if err := entries.add(conn); err != nil {
		return nil, fmt.Errorf("encode map entries: %w", err)
	}
	if err := conn.Flush(); err != nil {
		return nil, fmt.Errorf("replace nftables table %q: %w", NftTable, err)
	}
	return []string{"nftables table " + NftTable}, nil
}

func (r ruleSpec) userData(tag string) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, r.comment+" #"+tag)
}

// inKernel compares comments, whose tag covers the content of all rules, and
// the elements of the sets that are fixed.
func (rs ruleset) inKernel(conn *nftables.Conn) bool {
	if there, err := hasTable(conn, rs.table.Family); err != nil || !there {
		return false
	}
	for _, ch := range rs.chains {
		rules, err := conn.GetRules(rs.table, &ch.chain)
		if err != nil || len(rules) != len(ch.rules) {
			return false
		}
		for i, r := range rules {
			if !bytes.Equal(r.UserData, ch.rules[i].userData(rs.tag)) {
				return false
			}
		}
	}
	for _, s := range rs.sets {
		if !s.set.Interval {
			continue
		}
		have, err := conn.GetSetElements(s.set)
		if err != nil || !sameKeys(have, s.elements) {
			return false
		}
	}
	return true
}

func sameKeys(a, b []nftables.SetElement) bool {
	keys := func(list []nftables.SetElement) map[string]bool {
		m := map[string]bool{}
		for _, e := range list {
			m[fmt.Sprintf("%x %t", e.Key, e.IntervalEnd)] = true
		}
		return m
	}
	return maps.Equal(keys(a), keys(b))
}

// replace queues the removal of the table and its new content. Adding first
// makes the removal succeed when there was none.
func (rs ruleset) replace(conn *nftables.Conn) {
	conn.AddTable(rs.table)
	conn.DelTable(rs.table)
	table := conn.AddTable(rs.table)
	for _, s := range rs.sets {
		_ = conn.AddSet(s.set, s.elements) // fails for anonymous sets only; encoding errors come with Flush
	}
	for _, ch := range rs.chains {
		c := ch.chain
		c.Table = table
		conn.AddChain(&c)
	}
	for _, ch := range rs.chains {
		ch.addRules(conn, table, rs.tag)
	}
}

func (ch chainSpec) addRules(conn *nftables.Conn, table *nftables.Table, tag string) {
	for _, r := range ch.rules {
		conn.AddRule(&nftables.Rule{
			Table: table, Chain: &nftables.Chain{Name: ch.chain.Name, Table: table},
			Exprs: r.exprs, UserData: r.userData(tag),
		})
	}
}

// eniEntries is the content of the ENI maps: device index by source address
// or prefix. A prefix of host length is an address.
type eniEntries map[netip.Prefix]int

func (e ENI) entries() eniEntries {
	m := eniEntries{}
	for _, a := range e.Addresses {
		m[hostPrefix(a)] = e.DeviceIndex
	}
	for _, p := range e.Prefixes {
		m[p] = e.DeviceIndex
	}
	return m
}

func (m eniEntries) indexes() []int {
	return slices.Compact(slices.Sorted(maps.Values(m)))
}

// eniEntries are those of the kernel, which outlive the daemon, and those of
// the ENIs set up since, in case the table was taken away.
func (n *Node) eniEntries(conn *nftables.Conn) (eniEntries, error) {
	m, err := kernelEntries(conn)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, eni := range n.enis {
		if !eni.Primary {
			maps.Copy(m, eni.entries())
		}
	}
	return m, nil
}

// hasTable tells whether Berth's table of a family is there and not switched off
// by a flag.
func hasTable(conn *nftables.Conn, family nftables.TableFamily) (bool, error) {
	tables, err := conn.ListTablesOfFamily(family)
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == NftTable && t.Flags == 0 }), nil
}

// kernelEntries reads the ENI maps; an absent table has no entries.
func kernelEntries(conn *nftables.Conn) (eniEntries, error) {
	if there, err := hasTable(conn, nftables.TableFamilyINet); err != nil || !there {
		return eniEntries{}, err
	}
	sets, err := conn.GetSets(berthTable())
	if err != nil {
		return nil, fmt.Errorf("list nftables sets: %w", err)
	}
	m := eniEntries{}
	for _, em := range eniMaps() {
		if !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == em.set.Name && s.IsMap }) {
			continue
		}
		elements, err := conn.GetSetElements(em.set)
		if err != nil {
			return nil, fmt.Errorf("read nftables map %s: %w", em.set.Name, err)
		}
		for _, e := range elements {
			addr, ok := netip.AddrFromSlice(e.Key)
			index, isENI := verdictIndex(e.Val)
			if !ok || !isENI {
				continue
			}
			bits := em.bits
			if bits == 0 {
				bits = addr.BitLen()
			}
			m[netip.PrefixFrom(addr, bits)] = index
		}
	}
	return m, nil
}

// verdictIndex reads the device index off "goto eni_N".
func verdictIndex(val []byte) (int, bool) {
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
func (m eniEntries) add(conn *nftables.Conn) error    { return m.queue(conn.SetAddElements) }
func (m eniEntries) remove(conn *nftables.Conn) error { return m.queue(conn.SetDeleteElements) }

func (m eniEntries) queue(send func(*nftables.Set, []nftables.SetElement) error) error {
	for _, em := range eniMaps() {
		var elements []nftables.SetElement
		for _, p := range slices.SortedFunc(maps.Keys(m), func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }) {
			if familyOf(p.Addr()) == em.family && (em.bits == p.Bits() || em.bits == 0 && p.IsSingleIP()) {
				elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice(),
					VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: eniChainName(m[p])}})
			}
		}
		for chunk := range slices.Chunk(elements, elementChunk) {
			if err := send(em.set, chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

// setENIMap makes the maps lead exactly the ENI's addresses to its chain. An
// address that moved here from another ENI changes hands in one transaction.
func (n *Node) setENIMap(eni ENI, c Config) (changed []string, err error) {
	conn, err := n.nft()
	if err != nil {
		return nil, err
	}
	have, err := kernelEntries(conn)
	if err != nil {
		return nil, err
	}
	add, remove := diffEntries(eni.entries(), have, eni.DeviceIndex)
	chain := eniChain(c, eni.DeviceIndex)
	rules, err := conn.GetRules(berthTable(), &chain.chain)
	s := n.set.Load()
	fresh := err != nil || len(rules) != 1 || !bytes.Equal(rules[0].UserData, chain.rules[0].userData(s.tag))
	if len(add) == 0 && len(remove) == 0 && !fresh {
		return nil, nil
	}
	if fresh {
		ch := chain.chain
		ch.Table = berthTable()
		conn.AddChain(&ch)
		conn.FlushChain(&ch)
		chain.addRules(conn, berthTable(), s.tag)
		changed = append(changed, "nftables chain "+ch.Name)
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
func diffEntries(want, have eniEntries, deviceIndex int) (add, remove eniEntries) {
	add, remove = eniEntries{}, eniEntries{}
	for p, index := range have {
		wanted := want[p] != 0
		if wanted && index != deviceIndex || !wanted && index == deviceIndex {
			remove[p] = index
		}
	}
	for p := range want {
		if have[p] != deviceIndex {
			add[p] = deviceIndex
		}
	}
	return add, remove
}

// clearENIMap removes an ENI's entries and its chain.
func (n *Node) clearENIMap(deviceIndex int) error {
	conn, err := n.nft()
	if err != nil {
		return err
	}
	have, err := kernelEntries(conn)
	if err != nil {
		return err
	}
	_, remove := diffEntries(nil, have, deviceIndex)
	if err := remove.remove(conn); err != nil {
		return fmt.Errorf("encode map entries: %w", err)
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	for _, ch := range chains {
		if ch.Table.Name == NftTable && ch.Name == eniChainName(deviceIndex) {
			conn.FlushChain(ch)
			conn.DelChain(ch)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("remove ENI %d from nftables: %w", deviceIndex, err)
	}
	return nil
}
