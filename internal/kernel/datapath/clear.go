package datapath

import (
	"context"
	"fmt"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Clear removes Berth's rules, routes and nftables tables from the node, before another network takes it over. It
// fails if a pod link is left. Sysctls, links and addresses of ENIs stay.
func (n *Node) Clear(ctx context.Context) (removed []string, err error) {
	inv, err := n.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	if len(inv.Links) > 0 {
		return nil, fmt.Errorf("remove Berth's state: pod link %s is left, and %d others", inv.Links[0].Name, len(inv.Links)-1)
	}
	n.setupMu.Lock()
	defer n.setupMu.Unlock()
	if removed, err = n.routing.setRules(func(netlink.Rule) bool { return true }, nil); err != nil {
		return removed, err
	}
	routes, err := n.routing.removeThat(unix.RT_TABLE_UNSPEC, func(netlink.Route) bool { return true })
	removed = append(removed, routes...)
	if err != nil {
		return removed, err
	}
	conn, err := n.nft()
	if err != nil {
		return removed, err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return removed, fmt.Errorf("list nftables tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == NftTable && (t.Family == nftables.TableFamilyINet || t.Family == nftables.TableFamilyARP) {
			conn.DelTable(t)
			removed = append(removed, "nftables table "+t.Name)
		}
	}
	if err := conn.Flush(); err != nil {
		return removed, fmt.Errorf("remove nftables table %q: %w", NftTable, err)
	}
	return removed, nil
}
