package datapath

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
)

func (k *kernel) nft() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithNetNSFd(int(k.ns)))
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
	state, err := c.Uplinks.state(n, conn)
	if err != nil {
		return nil, err
	}
	rs, err := buildRuleset(c, primary, state)
	if err != nil {
		return nil, err
	}
	if rs.inKernel(conn) {
		return nil, nil
	}
	rs.replace(conn)
	if err := state.add(conn, rs.markShift); err != nil {
		return nil, fmt.Errorf("encode map entries: %w", err)
	}
	if err := conn.Flush(); err != nil {
		return nil, fmt.Errorf("replace nftables table %q: %w", NftTable, err)
	}
	did, err := c.Uplinks.replaced(n)
	return append([]string{"nftables table " + NftTable}, did...), err
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

// hasTable tells whether Berth's table of a family is there and not switched off
// by a flag.
func hasTable(conn *nftables.Conn, family nftables.TableFamily) (bool, error) {
	tables, err := conn.ListTablesOfFamily(family)
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == NftTable && t.Flags == 0 }), nil
}
