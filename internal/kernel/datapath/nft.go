package datapath

import (
	"cmp"
	"fmt"
	"log/slog"

	"github.com/google/nftables"
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
	if rs.InKernel(conn) {
		return nil, nil
	}
	if err := rs.Replace(conn); err != nil {
		return nil, err
	}
	if err := state.add(conn, rs.markShift); err != nil {
		return nil, fmt.Errorf("encode map entries: %w", err)
	}
	if err := conn.Flush(); err != nil {
		return nil, fmt.Errorf("replace nftables table %q: %w", NftTable, err)
	}
	did, err := c.Uplinks.replaced(n)
	if err != nil { // the table is in place, and what follows is not to wait for this
		cmp.Or(c.Log, slog.New(slog.DiscardHandler)).Warn("the nftables table was replaced; connections that lack their translation may stay unanswered", "error", err)
	}
	return append([]string{"nftables table " + NftTable}, did...), nil
}
